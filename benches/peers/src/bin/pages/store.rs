//! The interface of a page store through which every engine in this program is driven.

use crate::keys::KEY_BYTES;
use peers::Result;

/// An open store with one tree of keys and values.
pub trait Store: Send + Sync + Sized {
    /// An open write transaction.
    type Writer<'a>: Writer;
    /// An open read transaction.
    type Reader<'a>: Reader;

    /// Bytes of a value that takes one page for itself, so that deleting it frees one page.
    const LONE_VALUE_BYTES: usize;

    /// One write transaction, committed if `work` is done; durable when it returns, or not: then
    /// [`Store::settle`] makes it durable, or the engine itself some day.
    ///
    /// # Errors
    ///
    /// Errors of the engine or `work`.
    fn write(
        &self,
        durable: bool,
        work: impl FnOnce(&mut Self::Writer<'_>) -> Result<()>,
    ) -> Result<()>;

    /// One read transaction.
    ///
    /// # Errors
    ///
    /// Errors of the engine or `work`.
    fn read(&self, work: impl FnOnce(&Self::Reader<'_>) -> Result<()>) -> Result<()>;

    /// Makes all that was committed durable.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn settle(&self) -> Result<()>;

    /// Bytes of the file.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    fn file_bytes(&self) -> Result<u64>;

    /// Free pages of the file, if the engine says.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn free_pages(&self) -> Result<Option<u64>>;

    /// Bytes written for free space so far, if the engine says.
    fn free_space_bytes(&self) -> Option<u64> {
        None
    }

    /// Moves some pages to lower places, while others read and write. Returns whether there is more
    /// to do, and nothing if the engine cannot do it.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn defragment(&self) -> Result<Option<bool>> {
        Ok(None)
    }

    /// Closes the store.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn close(self) -> Result<()> {
        self.settle()
    }
}

/// An open write transaction.
pub trait Writer {
    /// Puts a value in place of what is there.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Hears of puts that are to come, if the engine has a use for it.
    fn read_ahead(&mut self, _keys: &[[u8; KEY_BYTES]]) {}

    /// Deletes a key, which is there.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn delete(&mut self, key: &[u8]) -> Result<()>;
}

/// An open read transaction.
pub trait Reader {
    /// Shows the value of a key. Returns whether there is one.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool>;

    /// Shows the values of those keys that have one, each with the number of the key; by one call
    /// of the engine where it has such a call.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn get_batch(&self, keys: &[[u8; KEY_BYTES]], mut see: impl FnMut(usize, &[u8])) -> Result<()> {
        for (n, key) in keys.iter().enumerate() {
            self.get(key, |value| see(n, value))?;
        }
        Ok(())
    }

    /// Shows up to `count` entries from `from` on. Returns how many.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn scan(&self, from: &[u8], count: u64, see: impl FnMut(&[u8], &[u8])) -> Result<u64>;
}
