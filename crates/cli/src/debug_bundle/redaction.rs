//! Documents without the keys of clients: a bundle goes where logs go (decision 51,
//! `docs/decisions/0051-keys-stay-out-of-logs.md`).

use serde_json::Value;

/// The fields of documents that have keys of clients, as `start_hex` and `end`.
const KEY_FIELDS: [&str; 4] = ["start", "end", "start_hex", "end_hex"];

/// The document with `?` in the place of each key. The ends of the key space stay empty: it is
/// known where they are.
pub(super) fn without_keys(document: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut document = serde_json::from_slice(document)?;
    redact(&mut document);
    serde_json::to_vec_pretty(&document)
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(key) if KEY_FIELDS.contains(&name.as_str()) => {
                        if !key.is_empty() {
                            "?".clone_into(key);
                        }
                    }
                    other => redact(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_wherever_they_are_and_numbers_of_the_same_name_stay() {
        let document =
            br#"{"start":7,"regions":[{"id":1,"start":"","end":"ship","end_hex":"73"}]}"#;
        let redacted: Value = serde_json::from_slice(&without_keys(document).unwrap()).unwrap();
        let expected = serde_json::json!({
            "start": 7, "regions": [{ "id": 1, "start": "", "end": "?", "end_hex": "?" }],
        });
        assert_eq!(redacted, expected);
    }
}
