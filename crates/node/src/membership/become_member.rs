//! Drives a directory from any state to that of a member.

use flotilla_store::StoreDirectory;
use tokio::net::TcpListener;
use tonic::transport::Channel;

use super::bootstrap::BootstrapDriver;
use super::bootstrap_client::connection;
use super::bootstrap_server;
use super::waiting_server::WaitingServer;
use crate::clock::Clock;
use crate::config::ResolvedConfig;
use crate::net::security::NodeSecurity;
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
    security: &NodeSecurity,
    clock: Clock,
) -> Result<StoreDirectory, StartError> {
    let bootstrap = BootstrapDriver::new(directory, resolved, clock)?;
    let routes = bootstrap_server::routes(&bootstrap);
    let server = WaitingServer::start(listener, routes, resolved, security)?;
    let stores = resolved.spec.stores.iter();
    let channels: Result<Vec<Channel>, _> =
        stores.map(|store| connection(&store.address, security.dialer())).collect();
    let channels = channels.map_err(|error| {
        StartError::Refused(format!("initial_cluster has an address that is none: {error}"))
    })?;
    let ended = bootstrap.run(&channels, resolved).await;
    server.stop().await;
    ended?;
    bootstrap.announce(resolved, channels);
    Ok(bootstrap.take_directory().expect("only this takes the directory"))
}
