//! Embedding the page store: a harbour's book of ships, read while it is written.
//!
//! Run it twice: the second run finds what the first has checkpointed, and not what it published
//! after that.
//!
//! ```text
//! cargo run --example embed-pages -- --file /tmp/harbour
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use flotilla_pagestore::{Options, PageStore};
use flotilla_vfs::os::OsFs;

/// Keeps a harbour's book in one file of pages.
#[derive(Parser)]
struct Args {
    /// The file; made if it is missing.
    #[arg(long, default_value = "harbour.pages")]
    file: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let store = PageStore::open_with(Arc::new(OsFs::new()), &args.file, Options::default())?;
    let found = store.durable();
    println!("durable so far: transaction {}", found.txid);

    // One transaction over two trees: everybody sees both changes, or neither.
    let mut txn = store.write()?;
    let visit = txn.tree("visits")?.len() + 1;
    txn.tree("visits")?.put(&visit.to_be_bytes(), b"fram")?;
    txn.tree("ships")?.put(b"fram", format!("came {visit} times").as_bytes())?;
    txn.tree("ships")?.put(b"vasa", b"never came back")?;
    txn.set_commit_metadata(format!("visit {visit}").as_bytes());
    txn.publish()?;

    // A snapshot stays as it is, whatever is written.
    let before = store.read();
    let mut txn = store.write()?;
    txn.tree("ships")?.delete_range(b"", None)?;
    txn.publish()?;
    let ships = before.tree("ships")?.ok_or("it was published above")?;
    let mut all = ships.range(..);
    while let Some((name, story)) = all.next()? {
        println!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(story));
    }
    let now = store.read().tree("ships")?.ok_or("it is empty, but it is there")?;
    println!("ships now: {}, in the snapshot: {}", now.len(), ships.len());

    // Up to here no byte has been written. This makes the last published state durable.
    let durable = store.checkpoint()?;
    println!(
        "durable now: transaction {}, {}",
        durable.txid,
        String::from_utf8_lossy(&durable.commit_metadata)
    );

    let report = store.check()?;
    println!(
        "{} trees, {} pages, every one of them accounted for",
        report.tree_count, report.page_count
    );

    // Published, but never checkpointed: the next run will not find it.
    let mut txn = store.write()?;
    txn.tree("visits")?.delete_range(b"", None)?;
    txn.publish()?;

    Ok(())
}
