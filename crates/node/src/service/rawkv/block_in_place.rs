//! Runs long CPU work in place, after the runtime has moved the other tasks to another thread.
//!
//! To encode ten megabytes takes some milliseconds, in one piece. On a thread that serves
//! connections every request behind it would wait for that, and the messages between stores, too; a
//! node on few cores has one such thread or two. So the thread first hands its tasks to another
//! one, and the kernel shares the cores among the two.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Bytes from which on an answer is large: a tenth of a millisecond of CPU time.
const LARGE_BYTES: usize = 256 << 10;

/// Runs `work`, which takes as long as encoding `bytes`. If that is long, other tasks do not wait
/// for it.
pub(super) fn block_in_place<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    // A runtime of one thread has no other thread to take over.
    let may = Handle::try_current()
        .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes >= LARGE_BYTES && may { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn others_go_on_while_a_large_answer_is_encoded() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (told, heard) = mpsc::channel();
        let encoding = runtime.spawn(async move {
            // Behind this task on the only thread.
            tokio::spawn(async move { told.send(()).unwrap() });
            block_in_place(LARGE_BYTES, || heard.recv_timeout(Duration::from_secs(30)))
        });
        assert_eq!(runtime.block_on(encoding).unwrap(), Ok(()));
    }

    #[test]
    fn what_is_small_or_has_one_thread_is_done_in_place() {
        let one = Builder::new_current_thread().build().unwrap();
        assert_eq!(one.block_on(async { block_in_place(LARGE_BYTES, || 1) }), 1);
        assert_eq!(block_in_place(LARGE_BYTES, || 2), 2);
        let many = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let small = async { block_in_place(LARGE_BYTES - 1, || 3) };
        assert_eq!(many.block_on(many.spawn(small)).unwrap(), 3);
    }
}
