//! Threads for the work of abusers, which have machines of their own: here it gets what the stores
//! and the client that behaves leave of the cores.

use rustix::process::setpriority_process;
use tokio::runtime::{Builder, Handle, Runtime};

/// The lowest priority of a thread.
const NICE: i32 = 19;

/// Its tasks end when this is dropped.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    pub(crate) fn start() -> Self {
        let mut threads = Builder::new_multi_thread();
        // Without a process the call means the thread itself.
        threads.on_thread_start(|| setpriority_process(None, NICE).unwrap());
        Self(Some(threads.worker_threads(2).enable_all().build().unwrap()))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().unwrap().handle()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // A task must not wait for the threads of a runtime.
        self.0.take().unwrap().shutdown_background();
    }
}
