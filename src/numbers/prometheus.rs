//! The numbers as text that Prometheus reads.

use std::fmt::Write;
use std::time::Duration;

use super::stats::{Numbers, Spread, Stats};
use crate::error::Result;
use crate::store::Store;

impl Store {
    /// The numbers in the text format of Prometheus, version 0.0.4: what an app answers under `/metrics`.
    ///
    /// Counts, ages and sizes are gauges; durations are summaries with quantiles over the last hour, without a sum. Every
    /// number is of the file, and the same whichever process is asked, but those of `birkez_busy_…`: these are of this
    /// store.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// assert!(store.metrics()?.contains("# TYPE birkez_jobs gauge"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn metrics(&self) -> Result<String> {
        Ok(self.stats()?.prometheus())
    }
}

/// One of a kind's numbers.
type OneOf = fn(&Numbers) -> u64;

/// The states of a job, and which of a kind's numbers is of each.
const STATES: [(&str, OneOf); 9] = [
    ("ready", |numbers| numbers.ready),
    ("scheduled", |numbers| numbers.scheduled),
    ("behind", |numbers| numbers.behind),
    ("for_callers", |numbers| numbers.for_callers),
    ("running", |numbers| numbers.running),
    ("parked", |numbers| numbers.parked),
    ("done", |numbers| numbers.done),
    ("dead", |numbers| numbers.dead),
    ("cancelled", |numbers| numbers.cancelled),
];

impl Stats {
    /// These numbers in the text format of Prometheus; see [`Store::metrics`].
    pub fn prometheus(&self) -> String {
        let mut text = Text(String::new());
        self.write_kinds(&mut text);
        self.write_durations(&mut text);
        self.write_rates(&mut text);
        self.write_file(&mut text);
        text.0
    }

    fn write_kinds(&self, text: &mut Text) {
        text.family("birkez_jobs", "gauge", "Jobs by kind, queue and state.");
        for kind in &self.kinds {
            for (state, of) in STATES {
                let labels = [("kind", &*kind.kind), ("queue", &*kind.queue), ("state", state)];
                text.sample("birkez_jobs", &labels, of(&kind.numbers) as f64);
            }
        }
        text.family("birkez_oldest_ready_seconds", "gauge", "For how long the oldest ready job could have run.");
        for kind in &self.kinds {
            let age = kind.numbers.oldest_ready.unwrap_or_default();
            text.sample("birkez_oldest_ready_seconds", &labels(kind), age.as_secs_f64());
        }
        text.family("birkez_kind_handled", "gauge", "1 if a live runner handles the kind.");
        for kind in &self.kinds {
            text.sample("birkez_kind_handled", &labels(kind), f64::from(u8::from(kind.is_handled)));
        }
    }

    fn write_durations(&self, text: &mut Text) {
        type Of = fn(&Numbers) -> Spread;
        let families: [(&str, &str, Of); 2] = [
            ("birkez_enqueue_to_done_seconds", "From enqueue to done, over the window.", |numbers| {
                numbers.from_enqueue
            }),
            ("birkez_run_seconds", "How long attempts took, over the window.", |numbers| numbers.run_time),
        ];
        for (name, help, of) in families {
            text.family(name, "summary", help);
            for kind in &self.kinds {
                let spread = of(&kind.numbers);
                for (quantile, value) in [("0.5", spread.p50), ("0.95", spread.p95), ("0.99", spread.p99)] {
                    let labels = [("kind", &*kind.kind), ("queue", &*kind.queue), ("quantile", quantile)];
                    text.sample(name, &labels, value.as_ref().map_or(f64::NAN, Duration::as_secs_f64));
                }
            }
        }
    }

    fn write_rates(&self, text: &mut Text) {
        text.family("birkez_window_seconds", "gauge", "How long the window is.");
        text.sample("birkez_window_seconds", &[], self.window.as_secs_f64());
        let families: [(&str, &str, OneOf); 5] = [
            ("birkez_window_done", "Jobs done within the window.", |numbers| numbers.rates.done),
            ("birkez_window_attempts", "Attempts ended within the window.", |numbers| numbers.run_time.count),
            ("birkez_window_failed", "Attempts failed within the window.", |numbers| numbers.rates.failed),
            ("birkez_window_retried", "Of them, those that are retried.", |numbers| numbers.rates.retried),
            ("birkez_window_leases_lost", "Leases lost within the window.", |numbers| numbers.rates.leases_lost),
        ];
        for (name, help, of) in families {
            text.family(name, "gauge", help);
            for kind in &self.kinds {
                text.sample(name, &labels(kind), of(&kind.numbers) as f64);
            }
        }
    }

    fn write_file(&self, text: &mut Text) {
        let singles = [
            (
                "birkez_missed_occurrences",
                "gauge",
                "Occurrences that did not run and need attention.",
                self.missed as f64,
            ),
            ("birkez_file_bytes", "gauge", "Size of the database file.", self.file.database as f64),
            ("birkez_file_free_bytes", "gauge", "Of it, what is free.", self.file.free as f64),
            ("birkez_wal_bytes", "gauge", "Size of the write-ahead log.", self.file.wal as f64),
            ("birkez_kept_keys", "gauge", "Finished jobs without a payload, estimated.", self.keys.jobs as f64),
            ("birkez_kept_keys_bytes", "gauge", "What they take, estimated.", self.keys.bytes as f64),
            ("birkez_busy_waits_total", "counter", "Transactions that met a locked file.", self.busy.count as f64),
            ("birkez_busy_wait_seconds_total", "counter", "How long they waited for it.", self.busy.time.as_secs_f64()),
        ];
        for (name, kind, help, value) in singles {
            text.family(name, kind, help);
            text.sample(name, &[], value);
        }
    }
}

fn labels(kind: &super::KindStats) -> [(&'static str, &str); 2] {
    [("kind", &kind.kind), ("queue", &kind.queue)]
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if at == 0 { '{' } else { ',' });
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}
