//! A hash of the content that must not change under a key: of the content, not of its spelling.
//!
//! The content is written as canonical JSON (keys sorted at every level, no white space, numbers by value) and hashed
//! with SHA-256. A format byte goes in front, so that a later form can be told from this one. It is no secret: whoever
//! can guess a small content can check the guess.

use std::fmt;

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// Format byte of this form.
const FORMAT: u8 = 1;
/// A whole number below this in size has the same value as integer and as floating point.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; 17]);

impl Fingerprint {
    pub(crate) fn of(content: &Value) -> Fingerprint {
        let mut text = String::with_capacity(256);
        write_canonical(content, &mut text);
        let hash = Sha256::digest(text.as_bytes());
        let mut bytes = [FORMAT; 17];
        bytes[1..].copy_from_slice(&hash[..16]);
        Fingerprint(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            // Sorted here: a host may have built serde_json with `preserve_order`.
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (at, (name, item)) in entries.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_string(name, out);
                out.push(':');
                write_canonical(item, out);
            }
            out.push('}');
        }
    }
}

/// `1`, `1.0` and `1e0` are one number to JSON, and languages differ in which they write.
fn write_number(number: &Number, out: &mut String) {
    use std::fmt::Write as _;
    let written = if let Some(whole) = number.as_i64() {
        write!(out, "{whole}")
    } else if let Some(whole) = number.as_u64() {
        write!(out, "{whole}")
    } else {
        match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < EXACT => write!(out, "{}", float as i64),
            Some(float) => write!(out, "{float:e}"),
            None => write!(out, "{number}"),
        }
    };
    debug_assert!(written.is_ok(), "writing to a String does not fail");
}

fn write_string(text: &str, out: &mut String) {
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Fingerprint {
        Fingerprint::of(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn spelling_does_not_change_a_fingerprint() {
        let plain = of(r#"{"a":{"x":1,"y":[1,2]},"b":"é"}"#);
        assert_eq!(plain, of(" {\"b\" : \"\\u00e9\",\n \"a\":{\"y\":[1, 2],\"x\":1.0 } } "));
        assert_eq!(of("100"), of("1e2"));
        assert_eq!(of("-0.0"), of("0"));
    }

    #[test]
    fn content_changes_a_fingerprint() {
        let all = ["1", "2", "1.5", "\"1\"", "[1]", "[[1]]", "null", "{}", "[]", "{\"a\":1}", "{\"a\":null}", "true"];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(of(one), of(other), "{one} and {other}");
            }
        }
    }

    #[test]
    fn the_form_on_disk_does_not_change() {
        // Computed with Python: hashlib.sha256(b'{"a":1,"b":[true,null,"x"]}').hexdigest()[:32]
        assert_eq!(format!("{:?}", of(r#"{"b":[true,null,"x"],"a":1}"#)), "01eca8cfb31ab74533e1eb2f4c74d2d55d");
    }
}
