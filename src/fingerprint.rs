//! A hash of the content that must not change under a key: of the content, not of its spelling.
//!
//! The content is written as canonical JSON (keys sorted at every level, no white space, numbers by value) and hashed
//! with SHA-256. A format byte goes in front, so that a later form can be told from this one. It is no secret: whoever
//! can guess a small content can check the guess.

use std::fmt;
use std::fmt::Write as _;

use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

/// Format byte of this form.
const FORMAT: u8 = 1;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u8; 17]);

impl Fingerprint {
    /// Of JSON text. Read from the text itself, since a parsed number keeps no more than 64 bits.
    pub(crate) fn of(json: &str) -> Result<Fingerprint, serde_json::Error> {
        serde_json::from_str::<IgnoredAny>(json)?;
        let mut text = String::with_capacity(json.len());
        Reader { rest: json }.value(&mut text);
        let hash = Sha256::digest(text.as_bytes());
        let mut bytes = [FORMAT; 17];
        bytes[1..].copy_from_slice(&hash[..16]);
        Ok(Fingerprint(bytes))
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

/// Walks JSON that has been found well formed, and no deeper than serde_json reads.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Writes the next value in its canonical form.
    fn value(&mut self, out: &mut String) {
        match self.peek() {
            Some(b'{') => self.object(out),
            Some(b'[') => self.array(out),
            Some(b'"') => write_string(&self.string(), out),
            _ => write_plain(self.plain(), out),
        }
    }

    fn object(&mut self, out: &mut String) {
        self.skip();
        let mut entries: Vec<(String, String)> = Vec::new();
        while self.peek().is_some_and(|byte| byte != b'}') {
            let name = self.string();
            self.peek();
            self.skip();
            let mut value = String::new();
            self.value(&mut value);
            // Of a name that stands twice the last counts, as for every common reader.
            match entries.iter_mut().find(|(known, _)| *known == name) {
                Some(known) => known.1 = value,
                None => entries.push((name, value)),
            }
            self.comma();
        }
        self.skip();
        entries.sort_unstable();
        out.push('{');
        for (at, (name, value)) in entries.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            write_string(name, out);
            out.push(':');
            out.push_str(value);
        }
        out.push('}');
    }

    fn array(&mut self, out: &mut String) {
        self.skip();
        out.push('[');
        let mut first = true;
        while self.peek().is_some_and(|byte| byte != b']') {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            self.value(out);
            self.comma();
        }
        self.skip();
        out.push(']');
    }

    /// The next string, without its escapes.
    fn string(&mut self) -> String {
        self.peek();
        let mut escaped = false;
        let end = self.rest[1..].bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let (text, rest) = self.rest.split_at(end.map_or(self.rest.len(), |end| end + 2));
        self.rest = rest;
        serde_json::from_str(text).unwrap_or_default()
    }

    /// The next number, `true`, `false` or `null`.
    fn plain(&mut self) -> &'a str {
        let end = self.rest.find([',', '}', ']', ' ', '\t', '\n', '\r']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        text
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.bytes().next()
    }

    fn skip(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    fn comma(&mut self) {
        if self.peek() == Some(b',') {
            self.skip();
        }
    }
}

/// `1`, `1.0` and `1e0` are one number to JSON, and languages differ in which they write. A whole number is written with
/// all its digits, however many.
fn write_plain(text: &str, out: &mut String) {
    let is_float = text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) && text.parse::<f64>().is_ok();
    if !is_float {
        out.push_str(if text == "-0" { "0" } else { text });
        return;
    }
    let float: f64 = text.parse().unwrap_or_default();
    let written = match float.fract() == 0.0 && float.is_finite() {
        true if float == 0.0 => write!(out, "0"),
        true => write!(out, "{float:.0}"),
        false => write!(out, "{float:e}"),
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
        Fingerprint::of(text).unwrap()
    }

    #[test]
    fn spelling_does_not_change_a_fingerprint() {
        let plain = of(r#"{"a":{"x":1,"y":[1,2]},"b":"é"}"#);
        assert_eq!(plain, of(" {\"b\" : \"\\u00e9\",\n \"a\":{\"y\":[1, 2],\"x\":1.0 } } "));
        assert_eq!(of("100"), of("1e2"));
        assert_eq!(of("-0.0"), of("0"));
        assert_eq!(of("-0"), of("0"));
        assert_eq!(of("1e20"), of("100000000000000000000"));
        assert_eq!(of(r#"{"a":1,"a":2}"#), of(r#"{"a":2}"#));
        assert_eq!(of(r#"{"\u0061\"\\":[ ]}"#), of(r#"{"a\"\\":[]}"#));
    }

    #[test]
    fn content_changes_a_fingerprint() {
        let all = [
            "1",
            "2",
            "1.5",
            "\"1\"",
            "[1]",
            "[[1]]",
            "null",
            "{}",
            "[]",
            "{\"a\":1}",
            "{\"a\":null}",
            "true",
            "\"\"",
            "100000000000000000000",
            "100000000000000000001",
            "170141183460469231731687303715884105727",
            "170141183460469231731687303715884105726",
            "[\"a\",\"b\"]",
            "[\"a,b\"]",
            "[\"a\\\",\\\"b\"]",
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(of(one), of(other), "{one} and {other}");
            }
        }
    }

    #[test]
    fn what_is_no_json_has_no_fingerprint_and_nothing_panics() {
        for bad in ["", "{", "[1,", "nul", "{\"a\"}", "\"", "[\u{0}]", &"[".repeat(100_000)] {
            assert!(Fingerprint::of(bad).is_err());
        }
    }

    #[test]
    fn any_value_has_the_fingerprint_of_its_own_text_however_it_is_spaced() {
        let mut chance = fastrand::Rng::with_seed(5);
        for _ in 0..2_000 {
            let value = random_value(&mut chance, 3);
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            assert_eq!(of(&value.to_string()), of(&pretty), "{value}");
        }
    }

    fn random_value(chance: &mut fastrand::Rng, depth: u32) -> serde_json::Value {
        let text = |chance: &mut fastrand::Rng| -> String {
            (0..chance.usize(..4))
                .map(|_| *["\"", "\\", ",", "é", "\n", "}", "a"].get(chance.usize(..7)).unwrap())
                .collect()
        };
        match chance.u8(..if depth == 0 { 4 } else { 6 }) {
            0 => serde_json::Value::Null,
            1 => chance.i64(..).into(),
            2 => (chance.f64() * 1e3).into(),
            3 => text(chance).into(),
            4 => (0..chance.usize(..4)).map(|_| random_value(chance, depth - 1)).collect(),
            _ => {
                let entries = (0..chance.usize(..4)).map(|_| (text(chance), random_value(chance, depth - 1)));
                serde_json::Value::Object(entries.collect())
            }
        }
    }

    #[test]
    fn the_form_on_disk_does_not_change() {
        // Computed with Python: hashlib.sha256(b'{"a":1,"b":[true,null,"x"]}').hexdigest()[:32]
        assert_eq!(format!("{:?}", of(r#"{"b":[true,null,"x"],"a":1}"#)), "01eca8cfb31ab74533e1eb2f4c74d2d55d");
    }
}
