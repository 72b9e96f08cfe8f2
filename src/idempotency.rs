//! What the world outside tells a repeat by: a key for each job and for each of its steps.
//!
//! A job's is computed once, when the job is stored, and stays in its row: a changed secret, a renamed kind or an upgraded
//! payload never changes it. It follows from kind and key, so that a job that is enqueued anew into an empty database is
//! still the same one to a provider.

use std::fmt::Write;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::job::Job;

/// What is computed from an app's secret, or from none.
pub(crate) fn of_job(secret: &[u8], kind: &str, key: &str) -> String {
    // No kind has a control character in it.
    digest(secret, &[kind.as_bytes(), b"\0", key.as_bytes()])
}

/// The key of a job of a known type.
pub(crate) fn of<J: Job>(secret: &[u8], key: &str) -> String {
    if J::KEY_AS_IS { key.to_owned() } else { of_job(secret, J::KIND, key) }
}

/// Follows from the job's own, and so is as hard to guess.
pub(crate) fn of_step(idempotency: &str, step: &str) -> String {
    digest(idempotency.as_bytes(), &[step.as_bytes()])
}

/// 128 bits in hexadecimal: any provider takes them.
fn digest(secret: &[u8], parts: &[&[u8]]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a secret of any length");
    for part in parts {
        mac.update(part);
    }
    let bytes = mac.finalize().into_bytes();
    bytes[..16].iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_follows_from_the_secret_the_kind_and_the_key_and_nothing_else() {
        let key = of_job(b"s", "pay", "7");
        assert_eq!(key, of_job(b"s", "pay", "7"));
        assert_eq!(key.len(), 32);
        for other in
            [of_job(b"t", "pay", "7"), of_job(b"s", "pay7", ""), of_job(b"s", "pay", "8"), of_job(b"", "pay", "7")]
        {
            assert_ne!(key, other);
        }
    }

    #[test]
    fn the_values_in_files_that_are_out_there_do_not_change() {
        // Python: hmac.new(b"", b"pay\x007", hashlib.sha256).hexdigest()[:32], and so on.
        assert_eq!(of_job(b"", "pay", "7"), "f32f9f0c73a5c5ad1d1ec3baf7e7030b");
        assert_eq!(of_job(b"secret", "pay", "7"), "891e1e850c748ae66eaf145ce39349a1");
        assert_eq!(of_step(&of_job(b"", "pay", "7"), "charge"), "44567d6627125eadf179ba1fba1f9025");
    }

    #[test]
    fn no_step_has_the_key_of_another_jobs_step_however_both_are_named() {
        assert_ne!(of_step("inv", "1/refund"), of_step("inv/1", "refund"));
    }
}
