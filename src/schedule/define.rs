//! Storing what a schedule is: registered by a program, or kept in the file. The newest definition wins.

use rusqlite::{OptionalExtension, params};

use super::Schedule;
use super::dealt::between;
use super::kept::KeptSchedule;
use super::row::{ScheduleRow, Words};
use super::write::{Gap, record, stored};
use crate::calendar::{Mark, MissedReason, ScheduleState, left_out};
use crate::job::instant;
use crate::pen::{Group, OpResult};
use crate::sql;

/// Registers what a program's code describes, and notes what it no longer does.
pub(super) fn register(group: &mut Group<'_>, schedules: &[Schedule], program: &str, owner: i64) -> OpResult<()> {
    for schedule in schedules {
        define(group, schedule, None)?;
        group.statement(sql::SCHEDULE_REGISTERED)?.execute(params![schedule.name, program, owner])?;
    }
    // Registered by an earlier process of this program, and by none that is alive.
    group.statement(sql::NOTE_ORPHANS)?.execute(params![program, owner, group.now])?;
    Ok(())
}

/// Stores a definition under its name, beginning now, or changes the one that is there.
pub(super) fn define(group: &mut Group<'_>, schedule: &Schedule, kept: Option<&KeptSchedule>) -> OpResult<()> {
    insert(group, schedule)?;
    let row = group.statement(sql::SCHEDULE_BY_NAME)?.query_row([&schedule.name], ScheduleRow::read).optional()?;
    // A name that cannot be read is not met again.
    let Some(row) = row else { return Ok(()) };
    group.statement(sql::RETRY_REQUESTS)?.execute([row.id])?;
    let words = Words::of(schedule);
    let [kind, payload, template] =
        [kept.map(|kept| &kept.kind), kept.map(|kept| &kept.payload), kept.map(|kept| &kept.template)];
    let same = row.calendar == words.calendar
        && row.zone == words.zone
        && row.overlap == words.overlap
        && row.judges_as(&words)
        && [&row.kind, &row.payload, &row.key_template].map(Option::as_ref) == [kind, payload, template];
    let marks = Marks::of(group, &row, schedule)?;
    if same && row.error.is_none() && !marks.moved {
        return Ok(());
    }
    // What waits was judged by the old rules.
    let (found_at, seen_at) = stored(row.found().filter(|_| row.judges_as(&words) && !marks.moved));
    group.statement(sql::SET_SCHEDULE)?.execute(params![
        schedule.name,
        words.calendar,
        words.zone,
        words.catch_up,
        words.grace_ms,
        words.max_age_ms,
        words.overlap,
        kind,
        payload,
        template,
        marks.mark,
        marks.high,
        marks.born,
        marks.anchor,
        found_at,
        seen_at,
    ])?;
    Ok(())
}

/// A row for the schedule, if there is none: it begins now.
fn insert(group: &mut Group<'_>, schedule: &Schedule) -> rusqlite::Result<()> {
    let words = Words::of(schedule);
    group.statement(sql::INSERT_SCHEDULE)?.execute(params![
        schedule.name,
        words.calendar,
        words.zone,
        mark_now(schedule, group.now).to_string(),
        anchor(group.now),
    ])?;
    group.calendar = true;
    Ok(())
}

/// `every` counts from here, by whole seconds as its occurrences do.
fn anchor(now: i64) -> i64 {
    now.div_euclid(1_000) * 1_000
}

/// The mark of a schedule that begins now.
fn mark_now(schedule: &Schedule, now: i64) -> Mark {
    schedule.calendar.mark_at(&schedule.zone, instant(now))
}

/// Where a schedule's marks go when its definition is stored.
struct Marks {
    mark: String,
    high: Option<String>,
    born: String,
    anchor: i64,
    moved: bool,
}

impl Marks {
    /// The marks are kept. A calendar that has changed does not fire for the past, and no mark ever goes back: a clock
    /// that is wrong at that moment would have all of the time in between run again. What cannot be read begins now.
    fn of(group: &mut Group<'_>, row: &ScheduleRow, schedule: &Schedule) -> OpResult<Marks> {
        let now = mark_now(schedule, group.now);
        let bad = |column| row.unreadable == Some(column);
        let anchor = if bad("anchor") { anchor(group.now) } else { row.anchor };
        let Ok(old) = row.state(std::time::Duration::ZERO) else {
            let readable = |text: &str| text.parse::<Mark>().is_ok();
            let or_now = |text: &str| if readable(text) { text.to_owned() } else { now.to_string() };
            let high = row.high.clone().filter(|text| readable(text));
            return Ok(Marks { mark: or_now(&row.mark), high, born: or_now(&row.born), anchor, moved: true });
        };
        if row.means(&schedule.calendar) {
            let (mark, high, born) = (row.mark.clone(), row.high.clone(), row.born.clone());
            return Ok(Marks { mark, high, born, anchor, moved: bad("anchor") });
        }
        note_dropped(group, row, &old)?;
        let old_zone = row.zone.parse().unwrap_or(schedule.zone);
        let carry = |mark| schedule.calendar.carry_over(&schedule.zone, mark, &old_zone);
        let mark = carry(old.mark).later(now);
        let high = old.high.map(carry).filter(|high| *high > mark).map(|high| high.to_string());
        Ok(Marks { mark: mark.to_string(), high, born: carry(old.created).to_string(), anchor, moved: true })
    }
}

/// Records what a changed calendar leaves behind.
fn note_dropped(group: &mut Group<'_>, row: &ScheduleRow, state: &ScheduleState) -> OpResult<()> {
    let Ok(old) = row.definition() else { return Ok(()) };
    let after = old.calendar.carry_over(&old.zone, state.created.later(state.mark), &old.zone);
    let missed = (after, mark_now(&old, group.now));
    // Everything up to a high mark was dealt with before.
    if missed.0 >= missed.1 || state.high.is_some() {
        return Ok(());
    }
    let dealt = between(group.tx(), row.id, missed, &[])?;
    if let Some(dropped) = left_out(&dealt, &old.calendar, &old.zone, missed, MissedReason::Changed) {
        record(group, row.id, &[Gap::of(&dropped)])?;
    }
    Ok(())
}
