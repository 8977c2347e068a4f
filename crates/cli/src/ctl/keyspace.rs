//! Keyspaces, in a cluster of API V2.

use std::io::Write;

use flotilla_proto::keyspacepb::KeyspaceMeta;
use flotilla_proto::keyspacepb::keyspace_meta::Keyspace;
use serde_json::{Value, json};

use super::placement;
use super::text::ByteFormat;
use crate::tool::{ClusterTarget, Error, TableCell, number, table};

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum KeyspaceCommand {
    /// Makes a keyspace: `flotilla ctl keyspace create orders`
    ///
    /// Names have 1 to 20 letters, digits, hyphens and underscores. A keyspace stays for ever, and
    /// there are 1000 at most, besides DEFAULT.
    Create {
        /// Its name
        name: String,
    },
    /// Lists the keyspaces: `flotilla ctl keyspace list`
    List,
}

pub(super) async fn run(
    target: &ClusterTarget,
    command: &KeyspaceCommand,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let (stores, until) = (target.stores().await?, target.end_of_request());
    match command {
        KeyspaceCommand::Create { name } => {
            let response = placement::ask(target, &stores, until, async |operator| {
                let response = operator.create_keyspace(name.clone()).await?;
                Ok((!response.is_led_elsewhere).then_some(response))
            });
            let answered = response.await?;
            let response = &answered.answer;
            if !response.refusal.is_empty() {
                return Err(answered.refused(&format!("keyspace {name}: {}", response.refusal)));
            }
            if format.is_json {
                let made = json!({ "id": response.id, "name": name });
                return Ok(writeln!(out, "{made:#}")?);
            }
            Ok(writeln!(out, "keyspace {name} has the id {}", response.id)?)
        }
        KeyspaceCommand::List => {
            let all = placement::ask(target, &stores, until, async |operator| {
                operator.keyspaces().await.map(Some)
            });
            list(&all.await?.answer, format, out)
        }
    }
}

fn list(all: &[KeyspaceMeta], format: ByteFormat, out: &mut impl Write) -> Result<(), Error> {
    if format.is_json {
        let all: Value = all.iter().map(to_json).collect();
        return Ok(writeln!(out, "{all:#}")?);
    }
    if all.is_empty() {
        return Ok(writeln!(out, "no keyspaces: the API version of this cluster is V1")?);
    }
    let mut rows = table(&["id", "name", "state"]);
    for keyspace in all {
        let state = keyspace.state().as_str_name().to_lowercase();
        let (id, name) = (number(id(keyspace)), TableCell::new(&keyspace.name));
        rows.add_row([id, name, TableCell::new(state)]);
    }
    Ok(writeln!(out, "{}", rows.fitted(format.screen_width))?)
}

fn to_json(keyspace: &KeyspaceMeta) -> Value {
    json!({
        "id": id(keyspace),
        "name": keyspace.name,
        "state": keyspace.state().as_str_name().to_lowercase(),
        "created_at": keyspace.created_at,
    })
}

fn id(keyspace: &KeyspaceMeta) -> u32 {
    keyspace.keyspace.map_or(0, |Keyspace::Id(id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyspaces_are_a_table_or_a_list() {
        let all: Vec<_> = [(0, "DEFAULT"), (1, "orders")]
            .map(|(id, name)| KeyspaceMeta {
                keyspace: Some(Keyspace::Id(id)),
                name: name.to_owned(),
                ..KeyspaceMeta::default()
            })
            .into();
        let said = |all: &[KeyspaceMeta], is_json| {
            let mut out = vec![];
            list(all, ByteFormat { is_hex: false, is_json, screen_width: None }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let table = said(&all, false);
        assert!(table.contains("orders") && table.contains("enabled"), "{table}");
        let json: Value = serde_json::from_str(&said(&all, true)).unwrap();
        let orders = json!({ "id": 1, "name": "orders", "state": "enabled", "created_at": 0 });
        assert_eq!(json[1], orders);
        assert!(said(&[], false).starts_with("no keyspaces"));
    }
}
