//! A client on a thread of its own: requests of one kind, as from a process of their own.

use flotilla_cli::tool::Error;
use flotilla_client::{Client, Config};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinError;

use super::pace::Tally;

/// A client, and the thread that drives its connections. On a thread that takes large answers apart
/// as well, short ones would wait for that, and the store has no part in it.
pub(crate) struct Lane {
    client: Client,
    threads: Threads,
}

impl Lane {
    /// Connects, on a thread called `name`.
    ///
    /// # Errors
    ///
    /// As of the client; [`Error::Output`] if the kernel has no thread to give.
    pub(crate) async fn connect(
        name: &str,
        endpoints: &[String],
        config: &Config,
    ) -> Result<Lane, Error> {
        let mut threads = Builder::new_multi_thread();
        let threads = threads.worker_threads(1).thread_name(name).enable_all().build()?;
        let threads = Threads(Some(threads));
        let (endpoints, config) = (endpoints.to_vec(), config.clone());
        // There, because the tasks of a connection stay where it was made.
        let connecting = async move { Client::connect(&endpoints, config).await };
        let client = threads.handle().spawn(connecting).await.unwrap_or_else(resume)?;
        Ok(Lane { client, threads })
    }

    /// Sends requests by `send` on a thread that may sleep, and waits until all have been answered.
    pub(crate) async fn send(
        &self,
        send: impl FnOnce(&Handle, Client) -> Tally + Send + 'static,
    ) -> Tally {
        let threads = self.threads.handle().clone();
        let (client, on) = (self.client.clone(), threads.clone());
        threads.spawn_blocking(move || send(&on, client)).await.unwrap_or_else(resume)
    }
}

/// Threads that are not waited for when they are dropped, as that is not allowed in a task.
struct Threads(Option<Runtime>);

impl Threads {
    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("taken when it is dropped only").handle()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The panic of a task, here.
fn resume<T>(error: JoinError) -> T {
    std::panic::resume_unwind(error.into_panic())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_lane_to_nobody_is_an_error() {
        let config = Config { deadline: Duration::from_millis(1), ..Config::default() };
        let refused = Lane::connect("nobody", &["127.0.0.1:1".to_owned()], &config).await;
        assert!(matches!(refused.err(), Some(Error::Silent(_))));
    }
}
