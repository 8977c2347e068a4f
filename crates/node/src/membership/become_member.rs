//! Drives a directory from any state to that of a member.

use flotilla_store::StoreDirectory;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::bootstrap::BootstrapDriver;
use super::bootstrap_client::connection;
use super::bootstrap_server;
use crate::clock::Clock;
use crate::config::ResolvedConfig;
use crate::net::connection::ServerStop;
use crate::net::listen::{self, ServerLimits};
use crate::start::StartError;

/// Makes the directory that of a member of the cluster that `resolved` describes. Serves the other
/// listed stores on `listener` meanwhile, and no clients.
///
/// # Errors
///
/// [`StartError::Refused`] if it belongs to a store that lost its data, or to another cluster;
/// [`StartError::Store`] if it cannot be written.
///
/// # Cancel safety
///
/// May be dropped; what was promised is durable, and a later start goes on from there.
pub(crate) async fn become_member(
    directory: StoreDirectory,
    resolved: &ResolvedConfig,
    listener: &TcpListener,
    clock: Clock,
) -> Result<StoreDirectory, StartError> {
    let bootstrap = BootstrapDriver::new(directory, resolved, clock)?;
    let (stop, stopped) = watch::channel(ServerStop::Not);
    let limits = ServerLimits {
        connections_max: resolved.config.limits.connections_max,
        streams_per_connection_max: resolved.config.limits.streams_per_connection_max,
    };
    let routes = bootstrap_server::routes(&bootstrap);
    let served = listen::serve(bind_again(listener)?, routes, limits, stopped);
    let mut server = JoinSet::new();
    server.spawn(served);
    let channels: Result<Vec<Channel>, _> =
        resolved.spec.stores.iter().map(|store| connection(&store.address)).collect();
    let channels = channels.map_err(|error| {
        StartError::Refused(format!("initial_cluster has an address that is none: {error}"))
    })?;
    let ended = bootstrap.run(&channels, resolved).await;
    stop.send_replace(ServerStop::Connections);
    while server.join_next().await.is_some() {}
    ended?;
    bootstrap.announce(resolved, channels);
    Ok(bootstrap.take_directory().expect("only this takes the directory"))
}

/// Another handle on the listening socket: the node's own server goes on with it, and connections
/// in its backlog are not lost.
fn bind_again(listener: &TcpListener) -> Result<TcpListener, StartError> {
    use std::os::fd::AsFd as _;
    let again = || {
        let socket = listener.as_fd().try_clone_to_owned()?;
        TcpListener::from_std(std::net::TcpListener::from(socket))
    };
    again().map_err(|source| {
        let addr = listener.local_addr().map_or_else(|_| String::new(), |addr| addr.to_string());
        StartError::Listen { addr, source }
    })
}
