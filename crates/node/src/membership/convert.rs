//! Identities, greetings and questions of the bootstrap to and from the wire.

use bytes::Bytes;
use flotilla_identity::{
    BootstrapPlan, BootstrapRequest, BootstrapResponse, ClusterSettings, ClusterSpec, InitialStore,
    KnownRun, MemberId, SettingConflict, StoreHello, StoreRegistry, StoreRun, StoreState,
    StoreUuid,
};
use flotilla_proto::metapb;
use flotilla_proto::peers::{self, BootstrapOutcome};
use flotilla_region::{Descriptor, StoreId};
use tonic::Status;

/// A directory's number as it travels.
pub(crate) fn uuid_to_wire(uuid: StoreUuid) -> Bytes {
    Bytes::copy_from_slice(&uuid.0.to_le_bytes())
}

/// A directory's number.
///
/// # Errors
///
/// `INVALID_ARGUMENT` if it does not have sixteen bytes.
pub(crate) fn uuid_from_wire(bytes: &[u8]) -> Result<StoreUuid, Status> {
    let bytes = bytes.try_into().map_err(|_| malformed("a directory's number has 16 bytes"))?;
    Ok(StoreUuid(u128::from_le_bytes(bytes)))
}

/// A start as it travels.
pub(crate) fn run_to_wire(run: StoreRun) -> peers::StoreRun {
    peers::StoreRun { starts: run.starts, nonce: run.nonce }
}

/// A start.
pub(crate) fn run_from_wire(run: peers::StoreRun) -> StoreRun {
    StoreRun { starts: run.starts, nonce: run.nonce }
}

fn known_to_wire(known: KnownRun) -> peers::KnownRun {
    peers::KnownRun { run: Some(run_to_wire(known.run)), log_end: known.log_end }
}

fn known_from_wire(known: peers::KnownRun) -> KnownRun {
    KnownRun { run: run_from_wire(known.run.unwrap_or_default()), log_end: known.log_end }
}

/// A greeting as it travels.
pub(super) fn hello_to_wire(hello: &StoreHello) -> peers::StoreHello {
    peers::StoreHello {
        cluster_id: hello.from.cluster_id,
        from_store: hello.from.store.0,
        to_store: hello.to.0,
        name: hello.name.clone(),
        address: hello.address.clone(),
        uuid: uuid_to_wire(hello.uuid),
        run: Some(run_to_wire(hello.run)),
        level: hello.level,
        settings: hello.settings.encode().into(),
        expected_uuid: hello.expected_uuid.map(uuid_to_wire).unwrap_or_default(),
        known: hello.known.map(known_to_wire),
        confirmed: hello.confirmed.map(known_to_wire),
        registry_version: hello.registry_version,
        registry: hello
            .registry
            .as_ref()
            .map(|registry| registry.encode().into())
            .unwrap_or_default(),
    }
}

/// A greeting.
pub(super) fn hello_from_wire(wire: peers::StoreHello) -> Result<StoreHello, Status> {
    let settings = settings_from_wire(&wire.settings)?;
    let is_expected = !wire.expected_uuid.is_empty();
    let is_shown = !wire.registry.is_empty();
    let registry = is_shown.then(|| registry_from_wire(&wire.registry)).transpose()?;
    Ok(StoreHello {
        from: MemberId { cluster_id: wire.cluster_id, store: StoreId(wire.from_store) },
        to: StoreId(wire.to_store),
        name: wire.name,
        address: wire.address,
        uuid: uuid_from_wire(&wire.uuid)?,
        run: run_from_wire(wire.run.ok_or_else(|| malformed("a greeting without a start"))?),
        level: wire.level,
        settings,
        expected_uuid: is_expected.then(|| uuid_from_wire(&wire.expected_uuid)).transpose()?,
        known: wire.known.map(known_from_wire),
        confirmed: wire.confirmed.map(known_from_wire),
        registry_version: wire.registry_version,
        registry: registry.map(Box::new),
    })
}

/// A registry.
///
/// # Errors
///
/// `INVALID_ARGUMENT` says what cannot be read.
pub(super) fn registry_from_wire(row: &[u8]) -> Result<StoreRegistry, Status> {
    StoreRegistry::decode(row).map_err(|error| malformed(&error.to_string()))
}

/// Settings of a cluster.
///
/// # Errors
///
/// `INVALID_ARGUMENT` says what cannot be read.
pub(super) fn settings_from_wire(row: &[u8]) -> Result<ClusterSettings, Status> {
    ClusterSettings::decode(row).map_err(|error| malformed(&error.to_string()))
}

/// The registry's word about a store, as it travels.
pub(crate) fn state_to_wire(state: StoreState) -> peers::StoreState {
    match state {
        StoreState::Up => peers::StoreState::StoreUp,
        StoreState::Draining => peers::StoreState::StoreDraining,
        StoreState::Leaving => peers::StoreState::StoreLeaving,
        StoreState::Lost => peers::StoreState::StoreLost,
        StoreState::Removed => peers::StoreState::StoreRemoved,
    }
}

/// Labels as they travel.
pub(crate) fn labels_to_wire(labels: &[(String, String)]) -> Vec<metapb::StoreLabel> {
    let label = |(key, value): &(String, String)| metapb::StoreLabel {
        key: key.clone(),
        value: value.clone(),
    };
    labels.iter().map(label).collect()
}

/// Labels.
pub(crate) fn labels_from_wire(labels: Vec<metapb::StoreLabel>) -> Vec<(String, String)> {
    labels.into_iter().map(|label| (label.key, label.value)).collect()
}

/// One of the three questions of the bootstrap.
pub(crate) enum WireQuestion {
    /// `Prepare`.
    Prepare(peers::PrepareRequest),
    /// `Form`.
    Form(peers::FormRequest),
    /// `Begin`.
    Begin(peers::BeginRequest),
}

/// A question as it travels.
pub(super) fn bootstrap_to_wire(request: &BootstrapRequest) -> WireQuestion {
    match request {
        BootstrapRequest::Prepare { from, to, spec, round } => {
            WireQuestion::Prepare(peers::PrepareRequest {
                from_name: from.clone(),
                to_name: to.clone(),
                spec: Some(spec_to_wire(spec)),
                round: *round,
            })
        }
        BootstrapRequest::Form(plan) => WireQuestion::Form(peers::FormRequest {
            cluster_id: plan.cluster_id,
            round: plan.round,
            uuids: plan.uuids.iter().copied().map(uuid_to_wire).collect(),
            spec: Some(spec_to_wire(&plan.spec)),
            regions: plan.regions.iter().map(Descriptor::encode).collect(),
        }),
        BootstrapRequest::Begin { cluster_id, round } => {
            WireQuestion::Begin(peers::BeginRequest { cluster_id: *cluster_id, round: *round })
        }
    }
}

/// A question.
///
/// # Errors
///
/// `INVALID_ARGUMENT` says what cannot be read.
pub(crate) fn bootstrap_from_wire(question: WireQuestion) -> Result<BootstrapRequest, Status> {
    Ok(match question {
        WireQuestion::Prepare(wire) => BootstrapRequest::Prepare {
            from: wire.from_name,
            to: wire.to_name,
            spec: spec_from_wire(wire.spec)?,
            round: wire.round,
        },
        WireQuestion::Form(wire) => {
            let uuids: Result<Vec<_>, _> =
                wire.uuids.iter().map(|uuid| uuid_from_wire(uuid)).collect();
            let regions: Result<Vec<_>, _> =
                wire.regions.into_iter().map(Descriptor::decode).collect();
            BootstrapRequest::Form(Box::new(BootstrapPlan {
                cluster_id: wire.cluster_id,
                round: wire.round,
                uuids: uuids?,
                spec: spec_from_wire(wire.spec)?,
                regions: regions.map_err(|error| malformed(&error.to_string()))?,
            }))
        }
        WireQuestion::Begin(wire) => {
            BootstrapRequest::Begin { cluster_id: wire.cluster_id, round: wire.round }
        }
    })
}

fn spec_to_wire(spec: &ClusterSpec) -> peers::ClusterSpec {
    let store = |store: &InitialStore| peers::InitialStore {
        name: store.name.clone(),
        address: store.address.clone(),
    };
    peers::ClusterSpec {
        stores: spec.stores.iter().map(store).collect(),
        settings: spec.settings.encode().into(),
        regions: spec.regions,
        split_keys: spec.split_keys.clone(),
        cluster_id: spec.cluster_id,
    }
}

fn spec_from_wire(wire: Option<peers::ClusterSpec>) -> Result<ClusterSpec, Status> {
    let wire = wire.ok_or_else(|| malformed("a question without a specification"))?;
    let settings = settings_from_wire(&wire.settings)?;
    let store =
        |store: peers::InitialStore| InitialStore { name: store.name, address: store.address };
    let stores = wire.stores.into_iter().map(store).collect();
    let peers::ClusterSpec { regions, split_keys, cluster_id, .. } = wire;
    Ok(ClusterSpec { stores, settings, regions, split_keys, cluster_id })
}

/// An answer as it travels.
pub(crate) fn bootstrap_response_to_wire(response: BootstrapResponse) -> peers::BootstrapResponse {
    let empty = peers::BootstrapResponse::default();
    let of = |outcome: BootstrapOutcome| peers::BootstrapResponse {
        outcome: outcome.into(),
        ..empty.clone()
    };
    match response {
        BootstrapResponse::Fresh => of(BootstrapOutcome::Fresh),
        BootstrapResponse::Promised { uuid, round } => peers::BootstrapResponse {
            uuid: uuid_to_wire(uuid),
            round,
            ..of(BootstrapOutcome::Promised)
        },
        BootstrapResponse::Higher { promised } => {
            peers::BootstrapResponse { round: promised, ..of(BootstrapOutcome::Higher) }
        }
        BootstrapResponse::Differs(SettingConflict { name, ours, theirs }) => {
            peers::BootstrapResponse {
                setting: name,
                ours,
                theirs,
                ..of(BootstrapOutcome::Differs)
            }
        }
        BootstrapResponse::Misdirected { name } => {
            peers::BootstrapResponse { name, ..of(BootstrapOutcome::Misdirected) }
        }
        BootstrapResponse::Member { cluster_id, round, knows_asker } => peers::BootstrapResponse {
            cluster_id,
            round,
            knows_asker,
            ..of(BootstrapOutcome::Member)
        },
        BootstrapResponse::Formed { cluster_id, round } => {
            peers::BootstrapResponse { cluster_id, round, ..of(BootstrapOutcome::Formed) }
        }
        BootstrapResponse::NotFormed => of(BootstrapOutcome::NotFormed),
        BootstrapResponse::Begun => of(BootstrapOutcome::Begun),
        BootstrapResponse::NotBegun => of(BootstrapOutcome::NotBegun),
    }
}

/// An answer.
pub(super) fn bootstrap_response_from_wire(
    wire: peers::BootstrapResponse,
) -> Result<BootstrapResponse, Status> {
    let peers::BootstrapResponse { cluster_id, round, .. } = wire;
    let outcome = BootstrapOutcome::try_from(wire.outcome)
        .map_err(|_| malformed("an answer of a kind that this version does not know"))?;
    Ok(match outcome {
        BootstrapOutcome::Fresh => BootstrapResponse::Fresh,
        BootstrapOutcome::Promised => {
            BootstrapResponse::Promised { uuid: uuid_from_wire(&wire.uuid)?, round }
        }
        BootstrapOutcome::Higher => BootstrapResponse::Higher { promised: round },
        BootstrapOutcome::Differs => BootstrapResponse::Differs(SettingConflict {
            name: wire.setting,
            ours: wire.ours,
            theirs: wire.theirs,
        }),
        BootstrapOutcome::Misdirected => BootstrapResponse::Misdirected { name: wire.name },
        BootstrapOutcome::Member => {
            let knows_asker = wire.knows_asker;
            BootstrapResponse::Member { cluster_id, round, knows_asker }
        }
        BootstrapOutcome::Formed => BootstrapResponse::Formed { cluster_id, round },
        BootstrapOutcome::NotFormed => BootstrapResponse::NotFormed,
        BootstrapOutcome::Begun => BootstrapResponse::Begun,
        BootstrapOutcome::NotBegun => BootstrapResponse::NotBegun,
    })
}

fn malformed(what: &str) -> Status {
    Status::invalid_argument(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ClusterSpec {
        ClusterSpec {
            stores: ClusterSpec::parse_stores("s1=h:1,s2=h:2").unwrap(),
            settings: ClusterSettings { replicas: 5, ..ClusterSettings::default() },
            regions: 3,
            split_keys: vec![Bytes::from_static(b"m\0"), Bytes::from_static(b"x")],
            cluster_id: 4,
        }
    }

    #[test]
    fn questions_come_back_as_they_went() {
        let plan = BootstrapPlan {
            cluster_id: 1,
            round: 2,
            uuids: vec![StoreUuid(3), StoreUuid(u128::MAX)],
            spec: spec(),
            regions: spec().first_regions(),
        };
        let (from, to) = ("s1".to_owned(), "s2".to_owned());
        let questions = [
            BootstrapRequest::Prepare { from, to, spec: spec(), round: 7 },
            BootstrapRequest::Form(Box::new(plan)),
            BootstrapRequest::Begin { cluster_id: 1, round: 2 },
        ];
        for question in questions {
            assert_eq!(bootstrap_from_wire(bootstrap_to_wire(&question)).unwrap(), question);
        }
        let nothing = WireQuestion::Prepare(peers::PrepareRequest::default());
        assert!(bootstrap_from_wire(nothing).is_err());
    }

    #[test]
    fn answers_come_back_as_they_went() {
        let answers = [
            BootstrapResponse::Fresh,
            BootstrapResponse::Promised { uuid: StoreUuid(1 << 100), round: 2 },
            BootstrapResponse::Higher { promised: 3 },
            BootstrapResponse::Differs(SettingConflict {
                name: "a".to_owned(),
                ours: "b".to_owned(),
                theirs: "c".to_owned(),
            }),
            BootstrapResponse::Misdirected { name: "d".to_owned() },
            BootstrapResponse::Member { cluster_id: 4, round: 5, knows_asker: true },
            BootstrapResponse::Formed { cluster_id: 6, round: 7 },
            BootstrapResponse::NotFormed,
            BootstrapResponse::Begun,
            BootstrapResponse::NotBegun,
        ];
        for answer in answers {
            let wire = bootstrap_response_to_wire(answer.clone());
            assert_eq!(bootstrap_response_from_wire(wire).unwrap(), answer);
        }
    }

    #[test]
    fn greetings_come_back_as_they_went() {
        let run = StoreRun { starts: 1, nonce: 2 };
        let whole = StoreHello {
            from: MemberId { cluster_id: 3, store: StoreId(4) },
            to: StoreId(5),
            name: "s4".to_owned(),
            address: "h:4".to_owned(),
            uuid: StoreUuid(6),
            run,
            level: 7,
            settings: ClusterSettings::default(),
            expected_uuid: Some(StoreUuid(8)),
            known: Some(KnownRun { run, log_end: 9 }),
            confirmed: Some(KnownRun { run, log_end: 10 }),
            registry_version: 11,
            registry: Some(Box::new(StoreRegistry { version: 11, level: 1, stores: Vec::new() })),
        };
        let bare = StoreHello {
            expected_uuid: None,
            known: None,
            confirmed: None,
            registry: None,
            ..whole.clone()
        };
        for hello in [whole, bare] {
            assert_eq!(hello_from_wire(hello_to_wire(&hello)).unwrap(), hello);
        }
        assert!(hello_from_wire(peers::StoreHello::default()).is_err());
    }
}
