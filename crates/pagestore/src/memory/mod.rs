//! Pages in memory: the page table, the page cache, buffers and slabs, and the roots that pin them.

pub(crate) mod meta;
pub(crate) mod page_alloc;
pub(crate) mod page_cache;
pub(crate) mod page_reader;
pub(crate) mod page_table;
pub(crate) mod private_pages;
pub(crate) mod root;
pub(crate) mod slab;
pub(crate) mod spill_file;
pub(crate) mod value_alloc;
