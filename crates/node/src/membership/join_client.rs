//! Asks one question of a store that joins.

use std::time::Duration;

use flotilla_identity::{JoinAnswer, JoinQuestion, RegisterRequest, StoreReach};
use flotilla_proto::peers::join_client::JoinClient;
use flotilla_proto::peers::{self, LocateRequest, LocateResponse, RegisterResponse};
use flotilla_region::StoreId;
use tonic::{Code, Status};

use super::convert::{
    labels_to_wire, registry_from_wire, settings_from_wire, uuid_from_wire, uuid_to_wire,
};
use crate::net::dial::Dialer;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an answer may take: the leader of placement waits for a quorum.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the store at `address`, and waits for the answer.
pub(super) async fn ask(
    address: &str,
    dialer: &Dialer,
    question: JoinQuestion,
    request: &RegisterRequest,
) -> JoinAnswer {
    let exchange = exchange(address, dialer, question, request);
    match tokio::time::timeout(ANSWER_TIMEOUT, exchange).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(status)) => failed(&status),
        Err(_) => JoinAnswer::Silent("no answer in time".to_owned()),
    }
}

async fn exchange(
    address: &str,
    dialer: &Dialer,
    question: JoinQuestion,
    request: &RegisterRequest,
) -> Result<JoinAnswer, Status> {
    let connected = match dialer.endpoint(address, CONNECT_TIMEOUT) {
        Ok(endpoint) => dialer.connect(&endpoint).await,
        Err(error) => Err(error),
    };
    let channel = match connected {
        Ok(channel) => channel,
        Err(error) => return Ok(JoinAnswer::Silent(deepest_cause(&error))),
    };
    let mut client = JoinClient::new(channel);
    match question {
        JoinQuestion::Locate => located(client.locate(LocateRequest {}).await?.into_inner()),
        JoinQuestion::Register { cluster_id } => {
            let wire = peers::RegisterRequest {
                cluster_id,
                uuid: uuid_to_wire(request.uuid),
                name: request.name.clone(),
                address: request.address.clone(),
                labels: labels_to_wire(&request.labels),
                level: request.level,
                schema: request.schema,
                replace: request.is_replacement,
            };
            registered(client.register(wire).await?.into_inner())
        }
    }
}

fn located(response: LocateResponse) -> Result<JoinAnswer, Status> {
    let LocateResponse { cluster_id, uuid, settings, leader, waiting, .. } = response;
    let reach = StoreReach { stores: response.stores, connected: response.stores_connected };
    let uuid = uuid_from_wire(&uuid)?;
    if cluster_id == 0 {
        return Ok(JoinAnswer::NoCluster { uuid, waiting });
    }
    let settings = settings_from_wire(&settings)?;
    let leader = (!leader.is_empty()).then_some(leader);
    Ok(JoinAnswer::Member { cluster_id, uuid, settings, leader, reach })
}

fn registered(response: RegisterResponse) -> Result<JoinAnswer, Status> {
    let RegisterResponse { store_id, registry, settings, refusal, is_passing } = response;
    if store_id == 0 {
        return Ok(match is_passing {
            true => JoinAnswer::NotNow(refusal),
            false => JoinAnswer::Refused(refusal),
        });
    }
    let registry = Box::new(registry_from_wire(&registry)?);
    let settings = settings_from_wire(&settings)?;
    Ok(JoinAnswer::Registered { store: StoreId(store_id), registry, settings })
}

/// The meaning of a failed call: whether a store was there.
fn failed(status: &Status) -> JoinAnswer {
    let words = match std::error::Error::source(status) {
        Some(cause) => deepest_cause(cause),
        None => status.message().to_owned(),
    };
    match status.code() {
        // It has no such service, or its answer is none that this version can read.
        Code::Unimplemented | Code::InvalidArgument => JoinAnswer::NoStore(words),
        _ => JoinAnswer::Silent(words),
    }
}

/// The deepest of an error's causes, which names the kernel's reason; or the error itself.
fn deepest_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use flotilla_identity::{ClusterSettings, StoreRegistry, StoreUuid};

    use super::*;

    #[test]
    fn answers_that_cannot_be_read_are_no_store() {
        let settings = ClusterSettings::default();
        let whole = LocateResponse {
            cluster_id: 7,
            uuid: uuid_to_wire(StoreUuid(1)),
            settings: settings.encode().into(),
            leader: "h:1".to_owned(),
            waiting: String::new(),
            stores: 3,
            stores_connected: 2,
        };
        let reach = StoreReach { stores: 3, connected: 2 };
        let (uuid, leader) = (StoreUuid(1), Some("h:1".to_owned()));
        let member = JoinAnswer::Member { cluster_id: 7, uuid, settings, leader, reach };
        assert_eq!(located(whole.clone()).unwrap(), member);
        let cut = LocateResponse { settings: "".into(), ..whole.clone() };
        assert!(matches!(failed(&located(cut).unwrap_err()), JoinAnswer::NoStore(_)));
        let nameless = LocateResponse { uuid: "".into(), ..whole.clone() };
        assert!(located(nameless).is_err());
        let waiting = LocateResponse { cluster_id: 0, ..whole };
        assert!(matches!(located(waiting).unwrap(), JoinAnswer::NoCluster { .. }));

        let registry = StoreRegistry::default();
        let whole = RegisterResponse {
            store_id: 9,
            registry: registry.encode().into(),
            settings: settings.encode().into(),
            refusal: String::new(),
            is_passing: false,
        };
        let answer = registered(whole.clone()).unwrap();
        assert!(matches!(answer, JoinAnswer::Registered { store: StoreId(9), .. }));
        assert!(registered(RegisterResponse { registry: "".into(), ..whole.clone() }).is_err());
        let refused = RegisterResponse { store_id: 0, refusal: "no".to_owned(), ..whole };
        assert_eq!(registered(refused.clone()).unwrap(), JoinAnswer::Refused("no".to_owned()));
        let passing = RegisterResponse { is_passing: true, ..refused };
        assert_eq!(registered(passing).unwrap(), JoinAnswer::NotNow("no".to_owned()));
        let status = Status::unavailable("not leader");
        assert_eq!(failed(&status), JoinAnswer::Silent("not leader".to_owned()));
    }
}
