//! What the calendar costs: the next occurrence of a line, and finding what a year off has missed.
//!
//! `cargo bench --bench calendar`: the lines and zones of all vectors; medians, and between what the middle eight tenths lie.

use std::hint::black_box;
use std::time::{Duration, Instant};

use birkez::calendar::{Calendar, CatchUp, Policy, ScheduleState, ShortMonths, Zone, plan};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

const VECTORS: [(&str, ShortMonths); 2] = [
    (include_str!("../tests/vectors/cron_vectors.json"), ShortMonths::Skip),
    (include_str!("../tests/vectors/cron_clamp_vectors.json"), ShortMonths::LastDay),
];
/// Calls that are timed as one, so that the timer plays no part.
const CALLS: u32 = 200;
const ROUNDS: usize = 21;

const NEXT_TARGET_US: f64 = 10.0;
const YEAR_TARGET_US: f64 = 1_000.0;

struct Line {
    text: String,
    calendar: Calendar,
    zone: Zone,
    after: DateTime<Utc>,
}

fn lines() -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (json, short_months) in VECTORS {
        for case in serde_json::from_str::<Vec<Value>>(json)? {
            let field = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
            lines.push(Line {
                text: format!("`{}` in {} after {}", field("expr"), field("tz"), field("after")),
                calendar: Calendar::cron_with(&field("expr"), short_months)?,
                zone: Zone::parse(&field("tz"))?,
                after: field("after").parse()?,
            });
        }
    }
    Ok(lines)
}

fn main() -> anyhow::Result<()> {
    let lines = lines()?;
    let mut medians: Vec<(f64, &str)> = lines.iter().map(|line| (next(line), line.text.as_str())).collect();
    medians.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let times: Vec<f64> = medians.iter().map(|(time, _)| *time).collect();
    report(&format!("next, {} lines", lines.len()), &times, NEXT_TARGET_US);
    for (time, text) in medians.iter().rev().take(3) {
        println!("    slowest: {time:.2} us, {text}");
    }
    for (name, catch_up) in [("latest", CatchUp::Latest), ("skip", CatchUp::Skip), ("each", CatchUp::each())] {
        let target = if catch_up == CatchUp::Latest { YEAR_TARGET_US } else { f64::INFINITY };
        for text in ["* * * * *", "0-59 0-23 * * *", "30 2 * * *"] {
            let times = a_year_off(text, Policy { catch_up, ..Policy::default() })?;
            report(&format!("a year off, `{text}`, {name}"), &times, target);
        }
    }
    Ok(())
}

/// Microseconds of one call, the median of some rounds.
fn next(line: &Line) -> f64 {
    let times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| _ = black_box(black_box(&line.calendar).next(&line.zone, black_box(line.after))));
            micros(start.elapsed()) / f64::from(CALLS)
        })
        .collect();
    quantile(&times, 0.5)
}

/// Microseconds of each evaluation, over the hours of a day and so through both clock changes of a year.
fn a_year_off(text: &str, policy: Policy) -> anyhow::Result<Vec<f64>> {
    let (calendar, zone) = (Calendar::cron(text)?, Zone::parse("Europe/Berlin")?);
    let now: DateTime<Utc> = "2026-10-25T12:34:56Z".parse()?;
    let evaluate = |round: i64| {
        let now = now - TimeDelta::minutes(7 * round);
        let state = ScheduleState::new(calendar.mark_at(&zone, now - TimeDelta::days(365)));
        let start = Instant::now();
        let plan = black_box(plan(&calendar, &zone, black_box(&state), now, &policy));
        let took = micros(start.elapsed());
        drop(plan);
        took
    };
    evaluate(0);
    Ok((0..200).map(evaluate).collect())
}

fn report(what: &str, times: &[f64], target: f64) {
    let [low, middle, high] = [0.1, 0.5, 0.9].map(|part| quantile(times, part));
    let verdict = match target {
        target if target.is_infinite() => String::new(),
        target if middle < target => format!(", under the {target:.0} us wanted"),
        target => format!(", OVER THE {target:.0} us WANTED"),
    };
    println!("{what:40} {middle:>8.2} us ({low:.2}-{high:.2}){verdict}");
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}
