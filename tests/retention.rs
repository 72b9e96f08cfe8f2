//! What is over goes, and nothing else. What can go wrong: a job that waits loses its payload; a key is forgotten that
//! somebody repeats; a dead head vanishes and its line goes on without it; a correction goes without what it corrects; the
//! counts drift; an occurrence runs again; a prune that was killed leaves half a job, or two processes undo each other.

mod common;

use std::sync::Arc;
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Context, DeedPage, Filter, Job, JobName, Keep, Kept, Retention, RetryPolicy, Runner, Schedule, Standing, State,
    Store, UpkeepReport, Verdicts,
};
use common::{Child, ask, given, rows, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Letter {
    name: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    line: Option<String>,
    #[serde(default)]
    corrects: Option<String>,
}

impl Job for Letter {
    const KIND: &'static str = "letter";
    type Output = String;
    fn key(&self) -> String {
        self.name.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
    fn corrects(&self) -> Option<JobName> {
        self.corrects.as_ref().map(|name| JobName::new("letter", name))
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0).max_attempts(2)
    }
}

fn letter(name: &str) -> Letter {
    Letter { name: name.into(), text: format!("dear {name}"), ..Letter::default() }
}

struct Desk {
    folder: TempStore,
    clock: Arc<ManualClock>,
    store: Store,
}

/// All that a finished job has, gone after so many days.
fn all_after(days: u32) -> Kept {
    let keep = Keep::days(days);
    Kept::default().payload(keep).result(keep).history(keep).key(keep)
}

impl Desk {
    fn new(retention: Retention) -> Desk {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        let store = folder.builder().clock(clock.clone()).retention(retention).open().unwrap();
        Desk { folder, clock, store }
    }

    fn post(&self, letter: &Letter) -> i64 {
        self.store.enqueue(letter).unwrap().id
    }

    /// What a name begins with says how its job ends.
    fn drain(&self) {
        let handler = |letter: Letter, cx: &Context| {
            let _: u32 = cx.step("stamp", || Ok(7))?;
            let failed: anyhow::Result<String> = Err(anyhow::anyhow!("no stamp on {}", letter.name));
            match letter.name.split('/').next() {
                Some("dead") => failed.permanent(),
                Some("parked") => failed.park("auth"),
                Some("late") if cx.attempt() == 1 => failed,
                Some("fails") => failed,
                _ => Ok(format!("sent {}", letter.name)),
            }
        };
        Drain::new(Runner::builder(&self.store).handle(handler)).unwrap().drain().unwrap();
    }

    fn days(&self, days: u32) -> UpkeepReport {
        self.clock.advance(DAY * days);
        let report = self.store.upkeep().unwrap();
        self.assert_counts();
        report
    }

    #[track_caller]
    fn assert_counts(&self) {
        assert_counts(self.folder.path());
    }

    fn ask<T: birkez::rusqlite::types::FromSql>(&self, sql: &str) -> T {
        ask(self.folder.path(), sql)
    }

    fn keys(&self) -> Vec<String> {
        let keys: String = self.ask("SELECT coalesce(group_concat(key, ' ' ORDER BY id), '') FROM birkez_job");
        keys.split_whitespace().map(str::to_owned).collect()
    }
}

/// What is counted is what is there, and nothing hangs on a job that is gone.
#[track_caller]
fn assert_counts(file: &std::path::Path) {
    let counted = rows(file, "SELECT kind, state, n FROM birkez_count WHERE n <> 0 ORDER BY kind, state");
    let there =
        "SELECT kind, state, count(*) FROM birkez_job WHERE state >= 2 GROUP BY kind, state ORDER BY kind, state";
    assert_eq!(counted, rows(file, there));
    for table in ["birkez_attempt", "birkez_step", "birkez_progress", "birkez_lease"] {
        let loose = format!("SELECT count(*) FROM {table} WHERE job_id NOT IN (SELECT id FROM birkez_job)");
        assert_eq!(ask::<i64>(file, &loose), 0, "{table}");
    }
}

#[test]
fn by_default_a_done_job_loses_payload_and_output_after_thirty_days_and_keeps_its_key() {
    let desk = Desk::new(Retention::default());
    for name in ["a", "dead/1", "parked/1"] {
        desk.post(&letter(name));
    }
    desk.post(&letter("late/1"));
    desk.drain();
    let waits = desk.post(&Letter { name: "waits".into(), ..letter("waits") });
    let early = desk.days(29);
    assert_eq!((early.payloads, early.results, early.histories, early.keys), (0, 0, 0, 0), "{early}");
    let report = desk.days(1);
    assert_eq!((report.payloads, report.results, report.histories, report.keys), (1, 1, 0, 0), "{report}");
    let repeat = desk.store.enqueue(&letter("a")).unwrap();
    let Standing::Done(Err(gone)) = repeat.standing else { panic!("{repeat:?}") };
    assert_eq!((gone.code(), repeat.fresh, repeat.compared), ("RESULT_GONE", false, true));
    assert!(gone.to_string().contains("retired"), "{gone}");
    let other = Letter { text: "other".into(), ..letter("a") };
    assert_eq!(desk.store.enqueue(&other).unwrap_err().code(), "KEY_REUSED");
    desk.days(1_000);
    for name in ["dead/1", "parked/1"] {
        let id = desk.store.find("letter", name).unwrap().unwrap().id;
        assert!(desk.store.payload(id).unwrap().is_some(), "{name} has its payload");
        assert_eq!(desk.store.steps(id).unwrap().len(), 1, "{name} has its steps");
    }
    assert!(desk.store.payload(waits).unwrap().is_some());
    desk.drain();
    assert_eq!(desk.store.job(waits).unwrap().unwrap().state, State::Done);
}

#[test]
fn failed_attempts_of_a_done_job_are_kept_longer_and_then_go_with_its_last_failure() {
    let desk = Desk::new(Retention::default());
    let id = desk.post(&letter("late/1"));
    desk.drain();
    desk.clock.advance(DAY);
    desk.drain();
    assert_eq!(desk.store.job(id).unwrap().unwrap().state, State::Done);
    desk.days(399);
    assert_eq!(desk.store.attempts(id).unwrap().len(), 1);
    let report = desk.days(1);
    assert_eq!((report.histories, desk.store.attempts(id).unwrap().len()), (1, 0));
    assert_eq!(desk.store.job(id).unwrap().unwrap().last_failure, None);
    assert_eq!(desk.days(1).rows(), 0, "nothing is removed twice");
}

#[test]
fn an_output_of_nothing_stays_an_answer() {
    #[derive(Serialize, Deserialize)]
    struct Ping;
    impl Job for Ping {
        const KIND: &'static str = "ping";
        type Output = ();
        fn key(&self) -> String {
            "1".into()
        }
    }
    let desk = Desk::new(Retention::default());
    let _ = desk.store.enqueue(&Ping).unwrap();
    Drain::new(Runner::builder(&desk.store).handle(|_: Ping, _: &Context| Ok(()))).unwrap().drain().unwrap();
    assert_eq!((desk.days(31).payloads, desk.ask::<i64>("SELECT payload IS NULL FROM birkez_job")), (1, 1));
    assert!(matches!(desk.store.enqueue(&Ping).unwrap().standing, Standing::Done(Ok(()))));
}

#[test]
fn beyond_the_newest_so_many_goes_whatever_its_age_by_state() {
    let kept = Kept::default().payload(Keep::newest(2)).key(Keep::newest(4));
    let desk = Desk::new(Retention::keep_all().done(kept).dead(Kept::default().key(Keep::newest(1))));
    for n in 0..7 {
        desk.post(&letter(&format!("{n}")));
        desk.post(&letter(&format!("dead/{n}")));
    }
    desk.drain();
    let report = desk.days(0);
    assert_eq!((report.keys, report.payloads), (3 + 6, 2), "{report}");
    assert_eq!(desk.keys(), ["3", "4", "5", "6", "dead/6"]);
    let with = "SELECT group_concat(key, ' ' ORDER BY id) FROM birkez_job WHERE payload IS NOT NULL AND state = 2";
    assert_eq!(desk.ask::<String>(with), "5 6");
}

#[test]
fn a_key_that_is_gone_is_new_work_and_its_number_is_never_given_again() {
    let desk = Desk::new(Retention::default().done(all_after(10)));
    let first = desk.post(&letter("a"));
    desk.drain();
    assert_eq!(desk.days(9).keys, 0);
    assert_eq!(desk.days(1).keys, 1);
    assert!(desk.store.job(first).unwrap().is_none() && desk.store.finished().unwrap().is_empty());
    let again = desk.store.enqueue(&letter("a")).unwrap();
    assert!(again.fresh && again.id > first);
    desk.drain();
    assert_eq!(desk.store.job(again.id).unwrap().unwrap().state, State::Done);
}

#[test]
fn a_dead_head_stays_while_others_wait_behind_it_and_goes_when_nobody_does() {
    let desk = Desk::new(Retention::keep_all().dead(all_after(1)).cancelled(all_after(1)).done(all_after(1)));
    let line = |name: &str| Letter { line: Some("line".into()), ..letter(name) };
    let head = desk.post(&line("dead/1"));
    let behind = desk.post(&line("second"));
    desk.drain();
    let report = desk.days(2);
    assert_eq!((report.keys, report.kept_back), (0, 1), "{report}");
    desk.drain();
    assert_eq!(desk.store.job(behind).unwrap().unwrap().behind, Some(head), "it still waits for its turn");
    assert_eq!(desk.store.blocked_keys().unwrap().len(), 1);
    desk.store.pass_over(head, "Ada").unwrap();
    desk.drain();
    assert_eq!(desk.store.job(behind).unwrap().unwrap().state, State::Done);
    assert_eq!(desk.days(1).keys, 2);
    desk.post(&line("dead/2"));
    desk.drain();
    assert_eq!(desk.days(2).keys, 1, "a dead one that nobody waits for goes by its rule");
}

#[test]
fn a_job_and_what_corrects_it_go_together_or_not_at_all() {
    let desk = Desk::new(Retention::keep_all().done(all_after(10)));
    desk.post(&letter("entry"));
    desk.drain();
    desk.clock.advance(DAY * 6);
    desk.post(&Letter { corrects: Some("entry".into()), ..letter("correction") });
    desk.drain();
    let report = desk.days(5);
    assert_eq!((report.keys, report.kept_back), (0, 1), "{report}");
    let entry = desk.store.find("letter", "entry").unwrap().unwrap().id;
    assert_eq!(desk.store.corrections(entry).unwrap().len(), 1);
    let report = desk.days(5);
    assert_eq!(report.keys, 2, "{report}");
    assert!(desk.keys().is_empty());
}

#[test]
fn a_correction_stays_with_an_entry_that_stays() {
    let desk = Desk::new(Retention::keep_all().dead(all_after(1)));
    desk.post(&letter("entry"));
    desk.post(&Letter { corrects: Some("entry".into()), ..letter("dead/correction") });
    desk.drain();
    assert_eq!(desk.days(30).keys, 0);
    assert_eq!(desk.keys(), ["entry", "dead/correction"]);
}

#[test]
fn a_dead_job_whose_payload_was_retired_has_none_in_the_record_of_deeds_either() {
    let kept = Kept::default().payload(Keep::days(1));
    let desk = Desk::new(Retention::keep_all().cancelled(kept));
    let id = desk.post(&letter("dead/1"));
    desk.drain();
    desk.store.discard(id, "Ada").unwrap();
    run_sql(desk.folder.path(), "UPDATE birkez_event_job SET payload = '{\"secret\":1}'");
    assert_eq!(desk.days(1).payloads, 1);
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_event_job WHERE payload IS NOT NULL"), 0);
    assert_eq!(desk.store.deeds_of(id).unwrap().len(), 1, "the deed itself is on record");
}

#[test]
fn deeds_go_whole_by_age_or_count_however_many_jobs_they_touched() {
    let desk = Desk::new(Retention::keep_all().deeds(Keep::days(100).and_newest(2)));
    for n in 0..450 {
        desk.post(&letter(&format!("dead/{n}")));
    }
    desk.drain();
    desk.store.discard(Filter::dead(), "Ada").unwrap();
    for n in 0..2 {
        let later = desk.clock.now() + DAY * 1_000;
        let id = desk.post(&letter(&format!("later/{n}")));
        desk.store.reschedule(id, later, "Ada").unwrap();
    }
    assert_eq!(desk.days(1).deeds, 1, "beyond the newest two");
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_event_job"), 2);
    assert_eq!(desk.days(98).deeds, 0);
    assert_eq!(desk.days(1).deeds, 2);
    assert!(desk.store.deeds(DeedPage { below: None, limit: 9 }).unwrap().is_empty());
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_event_job"), 0);
}

#[test]
fn old_numbers_and_processes_go_and_whoever_lives_stays() {
    let desk = Desk::new(Retention::default());
    desk.post(&letter("a"));
    desk.drain();
    let day = 86_400_000_i64;
    let now = desk.clock.now().timestamp_millis();
    let slot = |days: i64| (now - days * day) / 300_000;
    run_sql(
        desk.folder.path(),
        &format!(
            "DELETE FROM birkez_tally;
             INSERT INTO birkez_tally VALUES ({}, 'letter', 0, 1, 5), ({}, 'letter', 0, 1, 5);
             INSERT INTO birkez_runner (id, uuid, has_lock, host, pid, program, lease_ms, started_at, heard_at, ended_at)
             VALUES (901, 'old', 0, 'h', 1, 'p', 1, 1, 1, {}), (902, 'new', 0, 'h', 1, 'p', 1, 1, 1, {});
             DELETE FROM birkez_presence;
             INSERT INTO birkez_presence (runner, what, name, since, until)
             VALUES (901, 'kind', 'letter', 1, NULL), (902, 'kind', 'letter', 1, NULL), (902, 'kind', 'other', 1, 2),
                    (903, 'kind', 'nobody', 1, NULL);",
            slot(9),
            slot(7),
            now - 401 * day,
            now - 399 * day
        ),
    );
    let report = desk.days(0);
    assert_eq!((report.numbers, report.runners), (1, 4), "{report}");
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_tally"), 1);
    assert_eq!(desk.ask::<String>("SELECT group_concat(runner, ' ') FROM birkez_presence"), "902");
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_runner WHERE id = 901"), 0);
    assert!(desk.ask::<i64>("SELECT count(*) FROM birkez_runner WHERE ended_at IS NULL") >= 1, "this process");
}

/// A daily schedule whose runs are forgotten after a day.
fn daily(desk: &Desk) -> Drain {
    let handler = |letter: Letter, _: &Context| Ok(letter.name);
    let schedule = Schedule::cron("daily", "0 3 * * *").unwrap().zone("Europe/Istanbul").unwrap();
    let runner = Runner::builder(&desk.store)
        .handle(handler)
        .schedule(schedule, |at: &birkez::Occurrence| Some(letter(&format!("day/{}", at.date()))));
    Drain::new(runner).unwrap()
}

#[test]
fn a_pruned_occurrence_never_fires_again() {
    let desk = Desk::new(Retention::keep_all().done(all_after(1)));
    let drain = daily(&desk);
    drain.drain().unwrap();
    let mut ran = 0;
    for _ in 0..5 {
        desk.clock.advance(DAY);
        ran += drain.drain().unwrap();
    }
    assert_eq!(ran, 5);
    let before = desk.clock.now();
    let report = desk.days(3);
    assert_eq!((report.keys, report.kept_back, report.schedules), (4, 1, 4), "{report}");
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_occurrence"), 5);
    // Whatever could make them fire again: a back-fill, a clock set back, a program that starts anew.
    let (from, to) = ("2026-05-30".parse().unwrap(), "2026-06-04".parse().unwrap());
    desk.store.backfill_schedule("daily", from, to, "Ada").unwrap();
    desk.clock.set(before - DAY * 3);
    daily(&desk).drain().unwrap();
    desk.clock.set(before);
    daily(&desk).drain().unwrap();
    let twice = "SELECT count(*) FROM birkez_job WHERE key IN (SELECT 'day/' || substr(occurrence, 1, 10) FROM birkez_occurrence WHERE cause = 'due')";
    assert_eq!(desk.ask::<i64>(twice), 1, "only the last success, which was never removed: {:?}", desk.keys());
    desk.assert_counts();
}

#[test]
fn what_did_not_run_is_remembered_while_somebody_must_look_or_the_schedule_must_know() {
    let desk = Desk::new(Retention::default());
    daily(&desk).drain().unwrap();
    desk.clock.advance(DAY);
    daily(&desk).drain().unwrap();
    run_sql(
        desk.folder.path(),
        "INSERT INTO birkez_missed (id, schedule, first, last, count, reason, at, attention)
         SELECT value, id, '2026-01-01T03:00', CASE value WHEN 3 THEN '2999-01-01T03:00' ELSE '2026-01-01T03:00' END, 1,
                'skipped', 1, CASE value WHEN 1 THEN 1 ELSE 0 END
         FROM birkez_schedule, (SELECT 1 AS value UNION SELECT 2 UNION SELECT 3);
         INSERT INTO birkez_request (schedule, verb, asked_at, done_at) SELECT id, 'run', 1, 2 FROM birkez_schedule;
         INSERT INTO birkez_request (schedule, verb, asked_at) SELECT id, 'run', 1 FROM birkez_schedule;",
    );
    assert_eq!(desk.days(0).schedules, 2);
    assert_eq!(desk.ask::<String>("SELECT group_concat(id, ' ') FROM birkez_missed"), "1 3");
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_request WHERE done_at IS NULL"), 1);
}

#[test]
fn a_runner_does_it_by_itself_and_says_where_it_is() {
    let desk = Desk::new(Retention::default());
    for n in 0..20 {
        desk.post(&letter(&format!("{n}")));
    }
    desk.drain();
    desk.clock.advance(DAY * 31);
    desk.drain(); // It notes the jump, which is believed once it has stood for a day.
    assert_ne!(desk.ask::<i64>("SELECT place FROM birkez_upkeep WHERE what = 'clock'"), 0);
    desk.clock.advance(DAY);
    let runner = Runner::builder(&desk.store).handle(|_: Letter, _: &Context| Ok(String::new())).start().unwrap();
    let left = "SELECT count(*) FROM birkez_job WHERE payload IS NOT NULL";
    wait_until("the payloads are gone", || desk.ask::<i64>(left) == 0);
    let whole = "SELECT count(*) FROM birkez_upkeep WHERE what = 'all' AND place = -1";
    wait_until("the walk over all jobs has ended", || desk.ask::<i64>(whole) == 1);
    let asked = std::time::Instant::now();
    runner.stop(Duration::from_secs(5)).unwrap();
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    desk.assert_counts();
}

#[test]
fn a_row_that_refuses_to_go_keeps_no_other_from_going() {
    let desk = Desk::new(Retention::keep_all().done(all_after(1)));
    for n in 0..10 {
        desk.post(&letter(&format!("{n}")));
    }
    desk.drain();
    run_sql(
        desk.folder.path(),
        "CREATE TRIGGER mine BEFORE DELETE ON birkez_job WHEN old.key = '4' BEGIN SELECT raise(ABORT, 'mine'); END",
    );
    assert_eq!(desk.days(2).keys, 9);
    assert_eq!(desk.keys(), ["4"]);
    assert_eq!(desk.ask::<i64>("SELECT count(*) FROM birkez_step"), 1);
}

/// A file with so many done jobs, made by SQL alone; each has a failed attempt and a step.
fn fill(store: &Store, jobs: u32) {
    store
        .write(|tx| {
            Ok(tx.execute_batch(&format!(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs})
                 INSERT INTO birkez_job (kind, key, payload, state, gate, run_at, created_at, finished_at, result)
                 SELECT 'letter', 'f' || i, '{{\"name\":\"f' || i || '\"}}', 2, NULL, 1000, 1000, 1750000000000, '\"x\"' FROM n;
                 INSERT INTO birkez_attempt SELECT id, 1, 1, 'transient', 't', 1, 1, 2 FROM birkez_job WHERE state = 2;
                 INSERT INTO birkez_step SELECT id, 's', '1', 1 FROM birkez_job WHERE state = 2;
                 INSERT INTO birkez_count VALUES ('letter', 2, {jobs});"
            ))?)
        })
        .unwrap();
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("prune") => {
            let store = Store::open(given("FILE")).unwrap();
            tell("ready");
            common::await_go();
            let report = store.prune(&Retention::keep_all().done(all_after(1))).unwrap();
            tell(format!("removed {}", report.keys));
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn a_prune_that_is_killed_has_removed_whole_jobs_and_the_next_goes_on() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    fill(&store, 6_000);
    for _ in 0..3 {
        let before = ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job");
        let mut child = Child::start("prune", &[("FILE", folder.path())]);
        child.expect("ready");
        child.go();
        wait_until("it has begun", || ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job") < before);
        let said = child.kill();
        assert!(said.is_empty(), "it was killed in its middle: {said:?}");
        assert_counts(folder.path());
    }
    let left = u64::try_from(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job")).unwrap();
    assert!(left > 0, "there is something left to do");
    assert_eq!(store.prune(&Retention::keep_all().done(all_after(1))).unwrap().keys, left);
    assert_counts(folder.path());
    assert_eq!(ask::<String>(folder.path(), "PRAGMA integrity_check"), "ok");
}

#[test]
fn two_processes_that_prune_at_once_remove_each_job_once() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    fill(&store, 3_000);
    let mut children = [(); 2].map(|()| Child::start("prune", &[("FILE", folder.path())]));
    children.iter_mut().for_each(|child| child.expect("ready"));
    children.iter_mut().for_each(Child::go);
    let removed = children.map(|child| {
        let said = child.finish();
        said.iter().find_map(|line| line.strip_prefix("removed ")).unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(removed.iter().sum::<u64>(), 3_000, "{removed:?}");
    assert!(removed.iter().all(|n| *n > 0), "both were at it: {removed:?}");
    assert_counts(folder.path());
    assert!(store.finished().unwrap().is_empty());
}
