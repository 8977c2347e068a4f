//! The generated protocol against what clients that we did not write expect on the wire.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flotilla_proto::{FILE_DESCRIPTOR_SET, errorpb, kvrpcpb, metapb, pdpb, peers, tikvpb};
use prost::Message as _;
use protox::prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind};

/// The protocol's facts, one a line, each as this test would print it.
const TIKV: &str = include_str!("tikv.txt");

fn facts() -> BTreeSet<&'static str> {
    TIKV.lines().filter(|l| !l.starts_with('#')).collect()
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("prost wrote it")
}

fn is_ours(package: &str) -> bool {
    package == "flotilla.peers"
}

#[test]
fn every_rpc_is_one_of_the_protocol() {
    let facts = facts();
    let mut count = 0;
    for service in pool().services() {
        if is_ours(service.package_name()) {
            continue;
        }
        for method in service.methods() {
            let many = |streaming| if streaming { "stream" } else { "one" };
            let line = format!(
                "rpc {}/{} {} {} {} {}",
                service.full_name(),
                method.name(),
                method.input().full_name(),
                method.output().full_name(),
                many(method.is_client_streaming()),
                many(method.is_server_streaming()),
            );
            assert!(facts.contains(line.as_str()), "not in the protocol: {line}");
            count += 1;
        }
    }
    let known = facts.iter().filter(|l| l.starts_with("rpc ")).count();
    assert_eq!(count, known, "rpcs of the table that are not served");
}

#[test]
fn every_field_has_the_number_and_type_of_the_protocol() {
    let facts = facts();
    let mut count = 0;
    for message in pool().all_messages() {
        if is_ours(message.package_name()) || message.is_map_entry() {
            continue;
        }
        for field in message.fields() {
            let line = format!(
                "field {} {} {} {}",
                message.full_name(),
                field.name(),
                field.number(),
                type_and_cardinality(&field),
            );
            assert!(facts.contains(line.as_str()), "not in the protocol: {line}");
            count += 1;
        }
    }
    assert!(count > 250, "only {count} fields were compared");
}

fn type_and_cardinality(field: &FieldDescriptor) -> String {
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else {
            unreachable!("a map is a message of entries")
        };
        let name = |field: FieldDescriptor| match field.kind() {
            Kind::Message(message) => format!("msg {}", message.full_name()),
            other => format!("{other:?}").to_lowercase(),
        };
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        return format!("map<{},{}> map", name(key), name(value)).replace("msg ", "");
    }
    let kind = match field.kind() {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(kind) => kind.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    let cardinality = match (field.containing_oneof(), field.cardinality()) {
        (Some(oneof), _) => format!("oneof:{}", oneof.name()),
        (None, Cardinality::Repeated) => "many".to_owned(),
        (None, _) => "one".to_owned(),
    };
    format!("{kind} {cardinality}")
}

#[test]
fn every_enum_is_complete() {
    let facts = facts();
    let mut compared = BTreeMap::new();
    for kind in pool().all_enums() {
        if is_ours(kind.package_name()) {
            continue;
        }
        for value in kind.values() {
            let line = format!("value {} {} {}", kind.full_name(), value.name(), value.number());
            assert!(facts.contains(line.as_str()), "not in the protocol: {line}");
            *compared.entry(kind.full_name().to_owned()).or_insert(0) += 1;
        }
    }
    for (kind, count) in compared {
        let known = format!("value {kind} ");
        let known = facts.iter().filter(|l| l.starts_with(&known)).count();
        assert_eq!(count, known, "values of {kind}");
    }
}

/// raft-rs puts `commit_term` at 15 and `priority` at 16; other copies of eraftpb have `priority`
/// at 15 and would read a term as a priority.
#[test]
fn raft_messages_are_numbered_as_in_raft_rs() {
    let expected: [(&str, u32); 15] = [
        ("msg_type", 1),
        ("to", 2),
        ("from", 3),
        ("term", 4),
        ("log_term", 5),
        ("index", 6),
        ("entries", 7),
        ("commit", 8),
        ("snapshot", 9),
        ("reject", 10),
        ("reject_hint", 11),
        ("context", 12),
        ("request_snapshot", 13),
        ("commit_term", 15),
        ("priority", 16),
    ];
    let message = pool().get_message_by_name("flotilla.peers.Message").unwrap();
    let found: Vec<_> = message.fields().map(|f| (f.name().to_owned(), f.number())).collect();
    let expected: Vec<_> = expected.map(|(name, number)| (name.to_owned(), number)).into();
    assert_eq!(found, expected);

    assert_eq!(peers::MessageType::MsgAppend as i32, 3);
    assert_eq!(peers::MessageType::MsgReadIndexResp as i32, 16);
    assert_eq!(peers::MessageType::MsgRequestPreVoteResponse as i32, 18);
    assert_eq!(peers::EntryType::EntryConfChangeV2 as i32, 2);
}

#[test]
fn a_put_as_a_client_writes_it() {
    let put = kvrpcpb::RawPutRequest {
        context: Some(kvrpcpb::Context {
            region_id: 2,
            region_epoch: Some(metapb::RegionEpoch { conf_ver: 1, version: 5 }),
            peer: Some(metapb::Peer { id: 201, store_id: 1, ..Default::default() }),
            max_execution_duration_ms: 30_000,
            keyspace: Some(kvrpcpb::context::Keyspace::KeyspaceId(u32::MAX)),
            cluster_id: 7,
            ..Default::default()
        }),
        key: Bytes::from_static(b"k"),
        value: Bytes::from_static(b"vv"),
        for_cas: true,
        ..Default::default()
    };
    #[rustfmt::skip]
    let golden = [
        0x0a, 29,                                // 1: context, 29 bytes
            0x08, 2,                             //   1: region_id
            0x12, 4, 0x08, 1, 0x10, 5,           //   2: region_epoch
            0x1a, 5, 0x08, 0xc9, 0x01, 0x10, 1,  //   3: peer
            0x70, 0xb0, 0xea, 0x01,              //   14: max_execution_duration_ms
            0x80, 0x02, 0xff, 0xff, 0xff, 0xff, 0x0f, // 32: keyspace_id
            0x98, 0x02, 7,                       //   35: cluster_id
        0x12, 1, b'k',                           // 2: key
        0x1a, 2, b'v', b'v',                     // 3: value
        0x30, 1,                                 // 6: for_cas
    ];
    assert_eq!(put.encode_to_vec(), golden);
    assert_eq!(kvrpcpb::RawPutRequest::decode(&golden[..]).unwrap(), put);
}

#[test]
fn a_batch_of_commands_as_a_client_writes_it() {
    use tikvpb::batch_commands_request::{Request, request::Cmd};
    let get = kvrpcpb::RawGetRequest { key: Bytes::from_static(b"k"), ..Default::default() };
    let empty = tikvpb::BatchCommandsEmptyRequest { test_id: 9, delay_time: 0 };
    let batch = tikvpb::BatchCommandsRequest {
        requests: vec![
            Request { cmd: Some(Cmd::RawGet(get)) },
            Request { cmd: Some(Cmd::Empty(empty)) },
        ],
        request_ids: vec![1, 300],
        ..Default::default()
    };
    #[rustfmt::skip]
    let golden = [
        0x0a, 5, 0x6a, 3, 0x12, 1, b'k',      // 1: requests[0].RawGet (13)
        0x0a, 5, 0xfa, 0x0f, 2, 0x08, 9,      // 1: requests[1].Empty (255)
        0x12, 3, 1, 0xac, 0x02,               // 2: request_ids, packed
    ];
    assert_eq!(batch.encode_to_vec(), golden);
    assert_eq!(tikvpb::BatchCommandsRequest::decode(&golden[..]).unwrap(), batch);
}

#[test]
fn what_is_not_served_is_skipped() {
    // An import (arm 5) in a batch, and a pair with an error (field 1).
    let batch = [0x0a, 4, 0x2a, 2, 0x10, 1, 0x12, 1, 5];
    let batch = tikvpb::BatchCommandsRequest::decode(&batch[..]).unwrap();
    assert_eq!(batch.request_ids, [5]);
    assert_eq!(batch.requests.len(), 1);
    assert_eq!(batch.requests[0].cmd, None);

    let pair = [0x0a, 3, 0x1a, 1, b'x', 0x12, 1, b'k'];
    let pair = kvrpcpb::KvPair::decode(&pair[..]).unwrap();
    assert_eq!(pair.key, "k");
}

#[test]
fn garbage_is_an_error() {
    let garbage = [0xff; 40];
    assert!(kvrpcpb::RawPutRequest::decode(&garbage[..]).is_err());
    assert!(peers::Frame::decode(&garbage[..]).is_err());
    // A length that claims more than there is.
    assert!(kvrpcpb::RawPutRequest::decode(&[0x12, 0xff, 0xff, 0xff, 0x7f][..]).is_err());
}

#[test]
fn an_error_names_the_leader() {
    let error = errorpb::Error {
        message: "no".to_owned(),
        not_leader: Some(errorpb::NotLeader {
            region_id: 3,
            leader: Some(metapb::Peer { id: 4, store_id: 5, ..Default::default() }),
        }),
        ..Default::default()
    };
    let golden = [0x0a, 2, b'n', b'o', 0x12, 8, 0x08, 3, 0x12, 4, 0x08, 4, 0x10, 5];
    assert_eq!(error.encode_to_vec(), golden);
}

#[test]
fn regions_by_id_is_a_map() {
    let mut response = pdpb::QueryRegionResponse { key_id_map: vec![2, 0], ..Default::default() };
    response.regions_by_id.insert(2, pdpb::RegionResponse::default());
    let golden = [0x12, 2, 2, 0, 0x22, 4, 0x08, 2, 0x12, 0];
    let decoded = pdpb::QueryRegionResponse::decode(&golden[..]).unwrap();
    assert_eq!(decoded, response);
}

/// Entries are the bulk of what travels: they must not be copied out of the frame.
#[test]
fn entries_share_the_frames_buffer() {
    let entry = peers::Entry { index: 1, data: Bytes::from(vec![7; 1000]), ..Default::default() };
    let message = peers::Message { entries: vec![entry], ..Default::default() };
    let message = peers::RegionMessage { message: Some(message), ..Default::default() };
    let frame = peers::Frame { messages: vec![message], ..Default::default() };

    let wire = Bytes::from(frame.encode_to_vec());
    let span = wire.as_ptr() as usize..wire.as_ptr() as usize + wire.len();
    let decoded = peers::Frame::decode(wire).unwrap();
    let data = &decoded.messages[0].message.as_ref().unwrap().entries[0].data;
    assert!(span.contains(&(data.as_ptr() as usize)));
}
