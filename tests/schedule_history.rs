//! Schedules as they are lived with, in a real file: ten months of sleep, travel over nine zones, daylight saving and wrong
//! clocks, evaluated by one process or by two.
//!
//! What can go wrong: a run lost or done twice, a missed one that is recorded nowhere, two processes that make one
//! occurrence, a highest mark that falls, a machine that starts in the year 2000.
//!
//! `BIRKEZ_HISTORIES` (default 2: one with one process, one with two; the full number is 200) and `BIRKEZ_SEED` change how
//! much is tried, and what.

mod common;
#[path = "schedule_history/lines.rs"]
mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use birkez::rusqlite::Connection;
use birkez::testing::{Drain, TempStore};
use birkez::{Clock, Context, Durability, Job, KeptSchedule, Occurrence, Runner, Store};
use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use common::rounds;
use fastrand::Rng;
use lines::{CHANGES, Home, Instants, LINES, ZONES};
use serde::{Deserialize, Serialize};

const LONGEST_SLEEP: TimeDelta = TimeDelta::days(4);

/// The machine's clocks, both moved by the history.
#[derive(Default)]
struct World {
    wall: AtomicI64,
    monotonic_ms: AtomicU64,
}

impl Clock for World {
    fn wall(&self) -> i64 {
        self.wall.load(Ordering::Acquire)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_ms.load(Ordering::Acquire))
    }

    fn random(&self) -> f64 {
        0.5
    }
}

/// What an occurrence of a schedule in code maps to. The serial number differs at each mapping, so that an occurrence that
/// is made twice has two jobs.
#[derive(Serialize, Deserialize)]
struct Tick {
    schedule: String,
    slot: String,
    serial: u64,
}

impl Job for Tick {
    const KIND: &'static str = "tick";
    type Output = ();
    fn key(&self) -> String {
        format!("{}/{} #{}", self.schedule, self.slot, self.serial)
    }
}

/// What a schedule in the file maps to.
#[derive(Serialize, Deserialize)]
struct Kept {}

impl Job for Kept {
    const KIND: &'static str = "kept";
    type Output = ();
    fn key(&self) -> String {
        unreachable!("its keys are made from a template")
    }
}

/// What the handlers and the mappings of all processes share.
#[derive(Default)]
struct Outside {
    serial: AtomicU64,
    mapping_fails: AtomicBool,
    /// How often the work of each occurrence was done.
    done: Mutex<BTreeMap<String, u32>>,
}

struct Process {
    store: Store,
    drain: Drain,
    zone: Tz,
}

/// A machine that sleeps, travels and has its clock set wrong, for ten months.
struct History {
    rng: Rng,
    folder: TempStore,
    world: Arc<World>,
    outside: Arc<Outside>,
    truth: DateTime<Utc>,
    /// What the clock shows less what it should.
    error: TimeDelta,
    zone: Tz,
    processes: Vec<Process>,
    instants: Vec<Instants>,
    /// For the oracle: a connection that only reads, and the highest marks so far.
    file: Connection,
    highest: BTreeMap<String, String>,
    tally: Tally,
}

/// How much a history has tried.
#[derive(Debug, Default)]
struct Tally {
    evaluations: u32,
    at_once: u32,
    travels: u32,
    sleeps: u32,
    resets: u32,
    believed: u32,
    restarts: u32,
    failures: u32,
    occurrences: usize,
    expected: usize,
    records: usize,
}

impl History {
    fn begin(seed: u64, processes: usize) -> History {
        let folder = TempStore::new().unwrap();
        let truth: DateTime<Utc> = "2026-02-10T09:17:31Z".parse().unwrap();
        let zone = ZONES[0];
        let (world, outside) = (Arc::new(World::default()), Arc::new(Outside::default()));
        world.wall.store(truth.timestamp_millis(), Ordering::Release);
        let started = (0..processes).map(|_| Process::start(&folder, &world, &outside, zone)).collect();
        let file = Connection::open(folder.path()).unwrap();
        let mut history = History {
            rng: Rng::with_seed(seed),
            folder,
            world,
            outside,
            truth,
            error: TimeDelta::zero(),
            zone,
            processes: started,
            instants: LINES.iter().map(|_| Instants::new(truth, zone)).collect(),
            file,
            highest: BTreeMap::new(),
            tally: Tally::default(),
        };
        history.keep_in_file();
        history.evaluate();
        history
    }

    fn now(&self) -> DateTime<Utc> {
        self.truth + self.error
    }

    fn chance(&mut self, of: u32) -> bool {
        self.rng.u32(..of) == 0
    }

    /// Schedules in the file follow the traveller when a person or an app sets their zone.
    fn keep_in_file(&self) {
        for line in LINES.iter().filter(|line| line.home == Home::File) {
            let kept = KeptSchedule::new(line.schedule(self.zone), Kept::KIND, &serde_json::json!({})).unwrap();
            self.processes[0].store.set_schedule(&kept).unwrap();
        }
    }

    /// Time passes: the next look is due, or comes a little early, or something has kept it.
    fn pass(&mut self) {
        let near = |change: &&str| (change.parse::<DateTime<Utc>>().unwrap() - self.truth).num_hours().abs() < 40;
        let busy = CHANGES.iter().any(near);
        let to_quarter = 900_000 - self.truth.timestamp_millis().rem_euclid(900_000);
        let step = match self.rng.u8(..10) {
            0..3 => to_quarter,
            3 => (to_quarter - self.rng.i64(1..20)).max(1),
            4..7 => self.rng.i64(1..2_400_000),
            _ if busy => self.rng.i64(1..4_800_000),
            _ => self.rng.i64(1..8 * 3_600_000),
        };
        self.truth += TimeDelta::milliseconds(step);
        self.world.monotonic_ms.fetch_add(step as u64, Ordering::AcqRel);
        if self.chance(60) {
            self.tally.sleeps += 1;
            let asleep = self.rng.i64(1..LONGEST_SLEEP.num_milliseconds());
            self.truth += TimeDelta::milliseconds(asleep);
            // The monotonic clock of some systems goes on in sleep.
            if self.rng.bool() {
                self.world.monotonic_ms.fetch_add(asleep as u64, Ordering::AcqRel);
            }
        }
        self.set_clock();
        self.world.wall.store(self.now().timestamp_millis(), Ordering::Release);
    }

    /// Sometimes the clock is set wrong, and some time later right.
    fn set_clock(&mut self) {
        let right = self.error.is_zero();
        let error = match self.rng.u32(..1_200) {
            0 | 1 => "2000-01-01T00:00:00Z".parse::<DateTime<Utc>>().unwrap() - self.truth,
            2..5 => -TimeDelta::minutes(self.rng.i64(1..600)),
            5..8 => -TimeDelta::minutes(self.rng.i64(1..40 * 1_440)),
            8..11 => TimeDelta::minutes(self.rng.i64(1..9 * 1_440)),
            11..30 if !right => TimeDelta::zero(),
            _ => return,
        };
        if right || error.is_zero() {
            self.tally.resets += u32::from(right);
            self.error = error;
        }
    }

    fn live(&mut self) {
        if self.chance(100) {
            self.tally.travels += 1;
            self.zone = ZONES[self.rng.usize(..ZONES.len())];
            // One process at least learns of it at once; the schedules of the others rest until they do.
            self.processes[0].learn(&self.outside, self.zone);
            self.keep_in_file();
        }
        for at in 0..self.processes.len() {
            if self.processes[at].zone != self.zone && self.chance(4) {
                self.processes[at].learn(&self.outside, self.zone);
            }
        }
        if self.chance(400) {
            self.tally.restarts += 1;
            let at = self.rng.usize(..self.processes.len());
            let (zone, last) = (self.zone, self.processes.len() - 1);
            self.processes.swap(at, last);
            drop(self.processes.pop());
            self.processes.push(Process::start(&self.folder, &self.world, &self.outside, zone));
        }
        let fails = self.chance(10);
        self.tally.failures += u32::from(fails);
        self.outside.mapping_fails.store(fails, Ordering::Release);
    }

    /// One look at the time, by the processes one after another or all at once.
    fn evaluate(&mut self) {
        self.tally.evaluations += 1;
        let up_to_date: Vec<&Process> = self.processes.iter().filter(|process| process.zone == self.zone).collect();
        if up_to_date.len() > 1 && self.rng.u8(..3) == 0 {
            self.tally.at_once += 1;
            let start = Barrier::new(self.processes.len());
            let evaluate = |process: &Process| {
                start.wait();
                process.drain.drain()
            };
            std::thread::scope(|scope| {
                let looks: Vec<_> = self.processes.iter().map(|process| scope.spawn(|| evaluate(process))).collect();
                looks.into_iter().for_each(|look| assert!(look.join().unwrap().is_ok()));
            });
        } else {
            // At least one of those that know the zone looks; the other may look before it, after it or not at all.
            let must = self.rng.usize(..up_to_date.len());
            let mut order = vec![up_to_date[must]];
            for other in self.processes.iter().filter(|process| !std::ptr::eq(*process, up_to_date[must])) {
                match self.rng.u8(..3) {
                    0 => order.push(other),
                    1 => order.insert(0, other),
                    _ => {}
                }
            }
            order.iter().for_each(|process| assert!(process.drain.drain().is_ok()));
        }
        let now = self.now();
        for (line, instants) in LINES.iter().zip(&mut self.instants).filter(|(line, _)| !line.is_wall()) {
            instants.evaluated(line, self.zone, now);
        }
        self.assert_marks_never_fall();
    }

    fn assert_marks_never_fall(&mut self) {
        let mut ask = self.file.prepare_cached("SELECT name, mark, high FROM birkez_schedule").unwrap();
        let rows = ask.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        for (name, mark, high) in rows.map(|row| row.unwrap()).collect::<Vec<(String, String, Option<String>)>>() {
            self.tally.believed += u32::from(high.is_some());
            let reached = high.map_or(mark.clone(), |high| high.max(mark));
            let before = self.highest.insert(name.clone(), reached.clone());
            assert!(before.as_ref().is_none_or(|before| *before <= reached), "{name}: {before:?} fell to {reached}");
        }
    }

    /// The clock is right in the end, and later than any wrong one has shown; nothing fails any more.
    fn end(&mut self) {
        self.error = TimeDelta::zero();
        self.outside.mapping_fails.store(false, Ordering::Release);
        for days in [12, 1] {
            self.truth += TimeDelta::days(days);
            self.world.wall.store(self.now().timestamp_millis(), Ordering::Release);
            self.processes.iter_mut().for_each(|process| process.learn(&self.outside, self.zone));
            self.evaluate();
        }
    }
}

impl Process {
    fn start(folder: &TempStore, world: &Arc<World>, outside: &Arc<Outside>, zone: Tz) -> Process {
        let clock: Arc<dyn Clock> = Arc::clone(world) as _;
        // Beats are real threads' and know nothing of months that pass at once: no process may be taken for dead.
        let lease = Duration::from_secs(10 * 365 * 86_400);
        let store = folder.builder().durability(Durability::Normal).lease(lease).clock(clock).open().unwrap();
        let drain = Process::drain(&store, outside, zone);
        Process { store, drain, zone }
    }

    fn learn(&mut self, outside: &Arc<Outside>, zone: Tz) {
        self.drain = Process::drain(&self.store, outside, zone);
        self.zone = zone;
    }

    fn drain(store: &Store, outside: &Arc<Outside>, zone: Tz) -> Drain {
        let done = |outside: &Arc<Outside>| {
            let outside = Arc::clone(outside);
            move |occurrence: &str| *outside.done.lock().unwrap().entry(occurrence.to_owned()).or_default() += 1
        };
        let (ticked, kept) = (done(outside), done(outside));
        let mut builder = Runner::builder(store)
            .handle(move |tick: Tick, _: &Context| {
                ticked(&format!("{}/{}", tick.schedule, tick.slot));
                Ok(())
            })
            .handle(move |_: Kept, cx: &Context| {
                kept(cx.key());
                Ok(())
            });
        for line in LINES.iter().filter(|line| line.home != Home::File) {
            let (outside, may_fail) = (Arc::clone(outside), line.home == Home::FailingCode);
            let map = move |at: &Occurrence| {
                anyhow::ensure!(!may_fail || !outside.mapping_fails.load(Ordering::Acquire), "not now");
                let serial = outside.serial.fetch_add(1, Ordering::Relaxed);
                Ok([Tick { schedule: at.schedule().to_owned(), slot: at.id().to_owned(), serial }])
            };
            builder = builder.try_schedule(line.schedule(zone), map);
        }
        Drain::new(builder).unwrap()
    }
}

/// A record of occurrences that did not run.
struct Gap {
    first: String,
    last: String,
    count: u32,
}

/// What the file says in the end, in plain SQL, against what should have been made.
impl History {
    fn judge(mut self) -> Tally {
        for (sql, what) in [
            (
                "SELECT count(*) FROM birkez_occurrence WHERE jobs <> 1 OR conflicts IS NOT NULL OR cause <> 'due'",
                "each occurrence has made its one job",
            ),
            (
                "SELECT count(*) FROM (SELECT 1 FROM birkez_occurrence_job GROUP BY schedule, occurrence HAVING count(*) <> 1)",
                "none has two",
            ),
            (
                "SELECT count(*) FROM birkez_job WHERE state <> 2 OR attempts <> 1",
                "all jobs ran at their first attempt",
            ),
            (
                "SELECT (SELECT count(*) FROM birkez_occurrence) - (SELECT count(*) FROM birkez_job)",
                "there are no other jobs",
            ),
            (
                "SELECT count(*) FROM birkez_missed WHERE reason NOT IN ('newer', 'skipped', 'overlap')",
                "what did not run has a reason",
            ),
            (
                "SELECT count(*) - count(DISTINCT schedule || ' ' || first) FROM birkez_missed WHERE reason = 'overlap'",
                "what was skipped for overlap is recorded once",
            ),
        ] {
            let wrong: i64 = self.file.query_row(sql, [], |row| row.get(0)).unwrap();
            assert_eq!(wrong, 0, "{what}");
        }
        let mut all = BTreeMap::new();
        for (at, line) in LINES.iter().enumerate() {
            let ran = self.ran(line.name);
            self.tally.occurrences += ran.len();
            self.judge_line(at, &ran);
            all.extend(ran.into_iter().map(|id| (format!("{}/{id}", line.name), 1)));
        }
        let done = self.outside.done.lock().unwrap().clone();
        let wrong: Vec<_> = done.iter().filter(|&(id, times)| all.get(id) != Some(times)).collect();
        assert!(wrong.is_empty() && done.len() == all.len(), "work that was not done once: {wrong:?}");
        self.tally
    }

    fn judge_line(&mut self, at: usize, ran: &BTreeSet<String>) {
        let (line, name, instants) = (&LINES[at], LINES[at].name, &self.instants[at]);
        let (zone, records) = (self.zone, self.records(name));
        let local = |at: DateTime<Utc>| at.with_timezone(&zone).naive_local();
        let expected = match line.is_wall() {
            true => {
                let born: DateTime<Utc> = "2026-02-10T09:17:31Z".parse().unwrap();
                let born = born.with_timezone(&ZONES[0]).naive_local();
                line.nominals(born, local(self.now()))
            }
            false => instants.expected.clone(),
        };
        let recorded = |id: &String| records.iter().any(|gap| gap.first <= *id && *id <= gap.last);
        let lost: Vec<_> = expected.difference(ran).filter(|id| line.runs_each() || !recorded(id)).collect();
        assert!(lost.is_empty(), "{name}: {} of {} lost: {lost:?}", lost.len(), expected.len());
        let unasked: Vec<_> =
            ran.difference(&expected).filter(|id| line.is_wall() || !instants.allows(line, id)).collect();
        assert!(unasked.is_empty(), "{name}: {unasked:?}");
        assert!(!line.runs_each() || records.is_empty(), "{name}");
        assert!(line.runs_each() || !records.is_empty() && ran.len() < expected.len(), "{name}");
        for gap in records.iter().filter(|_| line.is_wall()) {
            let first = gap.first.parse::<chrono::NaiveDateTime>().unwrap() - TimeDelta::seconds(1);
            let exact = line.nominals(first, gap.last.parse().unwrap()).len();
            assert_eq!(gap.count as usize, exact.min(1_001), "{name}: {} to {}", gap.first, gap.last);
        }
        self.tally.expected += expected.len();
        self.tally.records += records.len();
    }

    fn ran(&self, name: &str) -> BTreeSet<String> {
        let sql = "SELECT occurrence FROM birkez_occurrence
                   WHERE schedule = (SELECT id FROM birkez_schedule WHERE name = ?1)";
        let mut ask = self.file.prepare(sql).unwrap();
        ask.query_map([name], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn records(&self, name: &str) -> Vec<Gap> {
        let sql = "SELECT first, last, count FROM birkez_missed
                   WHERE schedule = (SELECT id FROM birkez_schedule WHERE name = ?1)";
        let mut ask = self.file.prepare(sql).unwrap();
        let gap =
            |row: &birkez::rusqlite::Row<'_>| Ok(Gap { first: row.get(0)?, last: row.get(1)?, count: row.get(2)? });
        ask.query_map([name], gap).unwrap().map(Result::unwrap).collect()
    }
}

fn relive(seed: u64, processes: usize) {
    let start = Instant::now();
    let mut history = History::begin(seed, processes);
    let end = history.truth + TimeDelta::days(300);
    while history.truth < end {
        history.pass();
        history.live();
        history.evaluate();
    }
    history.end();
    let tally = history.judge();
    println!("seed {seed}, {processes} process(es): {tally:?} in {:.1?}", start.elapsed());
    assert!(tally.travels > 5 && tally.sleeps > 5 && tally.resets > 2 && tally.failures > 20, "{tally:?}");
    assert!(processes == 1 || tally.at_once > 100, "{tally:?}");
}

#[test]
fn ten_months_of_sleep_travel_and_wrong_clocks_run_or_record_each_occurrence_once() {
    let first = u64::from(rounds("BIRKEZ_SEED", 20_261_025));
    let histories = u64::from(rounds("BIRKEZ_HISTORIES", 2));
    println!("BIRKEZ_SEED={first} BIRKEZ_HISTORIES={histories}");
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(number) =
                    Some(taken.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < histories)
                {
                    let seed = first + number;
                    println!("seed {seed} begins");
                    relive(seed, 1 + (number % 2) as usize);
                }
            });
        }
    });
}
