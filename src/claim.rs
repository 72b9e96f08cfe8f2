//! Claiming: which jobs, in which order, under which lease.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use rusqlite::{OptionalExtension, Row, params, params_from_iter};

use crate::enqueue::text;
use crate::hold::Room;
use crate::job::{Job, holds_key};
use crate::ordering::supersede;
use crate::owner::Owner;
use crate::pen::Group;
use crate::retry::RetryPolicy;
use crate::settle::Claim;
use crate::sql;
use crate::telling::is_news;
use crate::upkeep::meets_its_twin;

/// How many jobs of higher priority may be claimed, or start, in front of a waiting lower one before that one gets a turn.
pub(crate) const PATIENCE: u32 = 16;
/// Payloads claimed in one transaction, in bytes: what is claimed ahead lies in memory.
const PAYLOADS: usize = 4 << 20;
/// Most rows let in at one look.
const LET_IN: i64 = 1_000;

/// What a crash of an attempt means; stands in the lease.
const RUN_AGAIN: i64 = 0;
const PARK: i64 = 1;
const DEAD: i64 = 2;

/// What a runner asks for.
pub(crate) struct Wish<'a> {
    pub owner: &'a Arc<Owner>,
    /// Kinds that it handles and that are open, under all their names.
    pub kinds: &'a [String],
    /// How many more may run of those that are limited.
    pub room: &'a Room,
    /// Workers that can start at once.
    pub idle: usize,
    /// How many more may be claimed for those that will be free soon.
    pub ahead: usize,
    /// Whether a job may be claimed ahead.
    pub may_wait: &'a dyn Fn(&Candidate) -> bool,
    /// Whether jobs of the kind are measured, and start soon after they were claimed ahead.
    pub is_quick: &'a dyn Fn(&Candidate) -> bool,
    /// What its handler says of a kind.
    pub traits: &'a dyn Fn(&str) -> Traits,
    /// The idempotency key of a row that was stored without one.
    pub idempotency: &'a dyn Fn(&Candidate) -> String,
    /// Whether an attempt of the job, or of one in its line, still runs in this process, though it was given up.
    pub runs_here: &'a dyn Fn(&Candidate) -> bool,
}

/// What a claim must know of a kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traits {
    pub policy: RetryPolicy,
    pub at_most_once: bool,
    /// Whether a dead one holds its ordering key back.
    pub holds_key: bool,
    /// Its present name, and its former ones.
    pub kind: &'static str,
    pub former: &'static [&'static str],
}

impl Traits {
    pub(crate) fn of<J: Job>() -> Traits {
        Traits {
            policy: J::retry(),
            at_most_once: J::AT_MOST_ONCE,
            holds_key: holds_key::<J>(),
            kind: J::KIND,
            former: J::FORMER_KINDS,
        }
    }

    /// All names of the kind, if it has had others.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let present = (!self.former.is_empty()).then_some(self.kind);
        present.into_iter().chain(self.former.iter().copied())
    }

    /// What a crash of this attempt means.
    fn on_crash(&self, attempt: u32, job: &Candidate) -> i64 {
        match (self.at_most_once, job.suspect) {
            (true, _) => PARK,
            // Charged in its claim, it may have been the last.
            (false, true) if job.one_attempt || self.policy.is_last(attempt) => DEAD,
            _ => RUN_AGAIN,
        }
    }
}

/// Counts how often waiting jobs of lower priority were passed over.
#[derive(Debug, Default)]
pub(crate) struct Fairness {
    passed_over: u32,
    /// The priority that had its turn last; the next turn goes to the next lower one, round and round.
    last: Option<i64>,
}

/// Lets in what has come due. True if there may be more.
pub(crate) fn let_in(group: &mut Group<'_>) -> rusqlite::Result<bool> {
    let let_in = group.statement(sql::LET_IN)?.execute([group.now])?;
    Ok(i64::try_from(let_in).is_ok_and(|n| n >= LET_IN))
}

/// When the next job that is not yet due becomes so.
pub(crate) fn next_due(group: &Group<'_>) -> rusqlite::Result<Option<i64>> {
    group.statement(sql::NEXT_DUE)?.query_row([], |row| row.get(0)).optional()
}

/// Claims what the wish asks for, best first, with the turns of those that were passed over.
pub(crate) fn claim(group: &mut Group<'_>, wish: &Wish<'_>, fairness: &mut Fairness) -> rusqlite::Result<Vec<Claim>> {
    let mut best = candidates(group, wish)?;
    let turns = fairness.turns(group, wish, &best)?;
    if !turns.is_empty() {
        // What makes room under a limit for a turn leaves a worker for others, which the next look finds.
        group.claimable |= give_way(wish, &turns, &mut best);
        best.truncate((wish.idle + wish.ahead).saturating_sub(turns.len()));
    }
    // Claimed ahead, it must not be overtaken again by what it has waited for.
    let turns = turns.into_iter().map(|turn| Candidate { priority: i64::MAX, ..turn });
    let mut claimed = Vec::with_capacity(best.len());
    for candidate in turns.chain(best) {
        let traits = (wish.traits)(&candidate.kind);
        claimed.extend(take(group, wish.owner, candidate, &traits, wish.idempotency)?);
    }
    Ok(claimed)
}

/// The suspect that is to be claimed by itself, if it comes before every other job.
///
/// A suspect was held by a process that died. It is charged in its claim's commit; if it kills this process too, its
/// lease says whether that was its last attempt, and nobody else is charged.
pub(crate) fn claim_suspect(group: &mut Group<'_>, wish: &Wish<'_>) -> rusqlite::Result<Option<Claim>> {
    let Some(suspect) = first(group, wish, true)? else { return Ok(None) };
    if first(group, wish, false)?.is_some_and(|other| other.priority > suspect.priority) {
        return Ok(None);
    }
    let traits = (wish.traits)(&suspect.kind);
    take(group, wish.owner, suspect, &traits, wish.idempotency)
}

/// A job that can be claimed.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub id: i64,
    pub kind: String,
    pub key: String,
    pub payload: Option<String>,
    pub shape: u32,
    pub priority: i64,
    pub run_at: i64,
    pub attempts: u32,
    pub claims: i64,
    pub deadline: Option<i64>,
    pub suspect: bool,
    pub for_callers: bool,
    pub ordering_key: Option<String>,
    pub idempotency: Option<String>,
    pub version: Option<i64>,
    pub created_at: i64,
    pub one_attempt: bool,
}

impl Candidate {
    fn read(row: &Row<'_>) -> rusqlite::Result<Candidate> {
        Ok(Candidate {
            id: row.get(0)?,
            kind: row.get(1)?,
            key: text(row, 2)?.unwrap_or_default(),
            payload: text(row, 3)?,
            shape: row.get(4)?,
            priority: row.get(5)?,
            run_at: row.get(6)?,
            attempts: row.get(7)?,
            claims: row.get(8)?,
            deadline: row.get(9)?,
            suspect: row.get::<_, i64>(10)? == 3,
            for_callers: false,
            ordering_key: text(row, 11)?,
            idempotency: text(row, 12)?,
            version: row.get(13)?,
            created_at: row.get(14)?,
            one_attempt: row.get(15)?,
        })
    }
}

/// Takes out what has no room under its limit beside the turns; true if that is anything.
fn give_way(wish: &Wish<'_>, turns: &[Candidate], best: &mut Vec<Candidate>) -> bool {
    let (mut room, before) = (wish.room.clone(), best.len());
    turns.iter().for_each(|turn| {
        room.take(&turn.kind);
    });
    best.retain(|job| room.take(&job.kind));
    best.len() < before
}

/// What was found for a wish so far.
struct Finds {
    found: Vec<Candidate>,
    bytes: usize,
    room: Room,
}

/// As many as the wish has room for. Kinds that have come to their limit are left out of what is read on: nobody walks
/// over rows that cannot be taken.
fn candidates(group: &Group<'_>, wish: &Wish<'_>) -> rusqlite::Result<Vec<Candidate>> {
    let found = Vec::with_capacity((wish.idle + wish.ahead).min(256));
    let mut finds = Finds { found, bytes: 0, room: wish.room.clone() };
    let mut kinds = Cow::Borrowed(wish.kinds);
    while !kinds.is_empty() && find_more(group, wish, &kinds, &mut finds)? {
        kinds.to_mut().retain(|kind| finds.room.has(kind));
    }
    Ok(finds.found)
}

/// Reads on in order; true if it has met a kind that has come to its limit, and others may follow. It stops at the first
/// that may not be claimed ahead: passing it over would start what comes after it first.
fn find_more(group: &Group<'_>, wish: &Wish<'_>, kinds: &[String], finds: &mut Finds) -> rusqlite::Result<bool> {
    let before = finds.found.len();
    let mut statement = group.statement(&sql::candidates(kinds.len(), false))?;
    let mut rows = statement.query(params_from_iter(kinds))?;
    while finds.found.len() < wish.idle + wish.ahead && finds.bytes < PAYLOADS {
        let Some(row) = rows.next()? else { break };
        let Some(candidate) = readable(row) else { continue };
        if finds.found[..before].iter().any(|known| known.id == candidate.id) || (wish.runs_here)(&candidate) {
            continue;
        }
        if !finds.room.has(&candidate.kind) {
            return Ok(true);
        }
        if finds.found.len() >= wish.idle && !(wish.may_wait)(&candidate) {
            break;
        }
        finds.room.take(&candidate.kind);
        finds.bytes += candidate.payload.as_ref().map_or(0, String::len);
        finds.found.push(candidate);
    }
    Ok(false)
}

/// A row that another program has filled with what no job can have is passed over: it must not hold up the others.
fn readable(row: &Row<'_>) -> Option<Candidate> {
    let report = |error: &rusqlite::Error| {
        if is_news("a candidate", &error.to_string()) {
            tracing::error!(%error, "a job's row cannot be read and is passed over");
        }
    };
    Candidate::read(row).inspect_err(report).ok()
}

fn first(group: &Group<'_>, wish: &Wish<'_>, suspects: bool) -> rusqlite::Result<Option<Candidate>> {
    let mut statement = group.statement(&sql::candidates(wish.kinds.len(), suspects))?;
    let mut rows = statement.query(params_from_iter(wish.kinds))?;
    while let Some(row) = rows.next()? {
        if let Some(candidate) = readable(row).filter(|candidate| !(wish.runs_here)(candidate)) {
            return Ok(Some(candidate));
        }
    }
    Ok(None)
}

/// Takes the lease of one job. A suspect is charged with it, so that a crash finds it charged.
pub(crate) fn take(
    group: &mut Group<'_>,
    owner: &Arc<Owner>,
    mut candidate: Candidate,
    traits: &Traits,
    idempotency: &dyn Fn(&Candidate) -> String,
) -> rusqlite::Result<Option<Claim>> {
    if supersede(group, &candidate)? || meets_its_twin(group, &mut candidate, traits)? {
        return Ok(None);
    }
    let attempt = candidate.attempts.saturating_add(1);
    let token = candidate.claims + 1;
    let on_crash = traits.on_crash(attempt, &candidate);
    let lease = params![candidate.id, owner.id, token, attempt, group.now, on_crash];
    if group.statement(sql::CLAIM)?.execute(lease)? == 0 {
        return Ok(None);
    }
    if candidate.ordering_key.is_some() {
        // Stored by a program that knew no better, such as a script.
        group.statement(sql::SET_HOLDS_KEY)?.execute(params![candidate.id, traits.holds_key])?;
    }
    if candidate.suspect {
        group.statement(sql::CHARGE)?.execute(params![candidate.id, attempt])?;
    }
    let idempotency = match candidate.idempotency.take() {
        Some(stored) => stored,
        None => {
            let computed = idempotency(&candidate);
            group.statement(sql::SET_IDEMPOTENCY)?.execute(params![candidate.id, computed])?;
            computed
        }
    };
    let since = group.now;
    let at_most_once = traits.at_most_once;
    let owner = Arc::clone(owner);
    Ok(Some(claimed(candidate, Taken { attempt, token, since, at_most_once, idempotency, owner })))
}

/// What a claim adds to the job.
struct Taken {
    attempt: u32,
    token: i64,
    since: i64,
    at_most_once: bool,
    idempotency: String,
    owner: Arc<Owner>,
}

fn claimed(candidate: Candidate, taken: Taken) -> Claim {
    Claim {
        id: candidate.id,
        kind: candidate.kind,
        key: candidate.key,
        payload: candidate.payload,
        shape: candidate.shape,
        priority: candidate.priority,
        run_at: candidate.run_at,
        attempt: taken.attempt,
        token: taken.token,
        since: taken.since,
        deadline: candidate.deadline,
        suspect: candidate.suspect,
        for_callers: candidate.for_callers,
        at_most_once: taken.at_most_once,
        ordering_key: candidate.ordering_key,
        version: candidate.version,
        created_at: candidate.created_at,
        one_attempt: candidate.one_attempt,
        idempotency: taken.idempotency,
        owner: taken.owner,
        started: AtomicI64::new(0),
    }
}

impl Fairness {
    /// The jobs whose turn it is, after enough others were claimed in front of them: one for each [`PATIENCE`], and each
    /// lower priority in its turn.
    fn turns(&mut self, group: &Group<'_>, wish: &Wish<'_>, taken: &[Candidate]) -> rusqlite::Result<Vec<Candidate>> {
        let Some(top) = taken.iter().map(|candidate| candidate.priority).max() else { return Ok(Vec::new()) };
        let Some(below) = level_below(group, wish, top)? else {
            self.passed_over = 0;
            return Ok(Vec::new());
        };
        let in_front = taken.iter().filter(|candidate| candidate.priority > below).count();
        self.passed_over = self.passed_over.saturating_add(u32::try_from(in_front).unwrap_or(u32::MAX));
        let mut turns: Vec<Candidate> = Vec::new();
        let mut room = wish.room.clone();
        while self.passed_over >= PATIENCE && turns.len() < in_front {
            let level = match self.last {
                Some(last) => level_below(group, wish, last.min(top))?.unwrap_or(below),
                None => below,
            };
            let known = |id: i64| taken.iter().chain(&turns).any(|candidate| candidate.id == id);
            let turn = oldest_at(group, wish, level, (&known, &room))?;
            if turns.len() >= wish.idle && turn.as_ref().is_some_and(|turn| !(wish.is_quick)(turn)) {
                break;
            }
            self.last = Some(level);
            self.passed_over -= PATIENCE;
            // All of this level is taken already, or runs; in the buffer the same patience counts.
            let Some(turn) = turn else { continue };
            room.take(&turn.kind);
            turns.push(turn);
        }
        Ok(turns)
    }
}

fn level_below(group: &Group<'_>, wish: &Wish<'_>, priority: i64) -> rusqlite::Result<Option<i64>> {
    let mut best: Option<i64> = None;
    for kind in wish.kinds {
        let mut ask = group.statement(sql::PRIORITY_BELOW)?;
        let found: Option<i64> = ask.query_row(params![kind, priority], |row| row.get(0)).optional()?;
        best = best.max(found);
    }
    Ok(best)
}

fn oldest_at(
    group: &Group<'_>,
    wish: &Wish<'_>,
    priority: i64,
    (known, room): (&dyn Fn(i64) -> bool, &Room),
) -> rusqlite::Result<Option<Candidate>> {
    let mut oldest: Option<Candidate> = None;
    for kind in wish.kinds.iter().filter(|kind| room.has(kind)) {
        let mut ask = group.statement(sql::CANDIDATES_AT)?;
        let mut rows = ask.query(params![kind, priority])?;
        while let Some(row) = rows.next()? {
            let Some(found) = readable(row) else { continue };
            if known(found.id) || (wish.runs_here)(&found) {
                continue;
            }
            if oldest.as_ref().is_none_or(|oldest| (found.run_at, found.id) < (oldest.run_at, oldest.id)) {
                oldest = Some(found);
            }
            break;
        }
    }
    Ok(oldest)
}
