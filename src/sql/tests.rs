//! Which index each statement uses. A partial index serves a statement only while both say the same condition, and a
//! statement that misses it still answers rightly: it only walks all jobs that there are.

use rusqlite::Connection;

use super::*;

/// What SQLite would do, one step a line, on a file whose statistics say nothing.
fn plan(sql: &str) -> Vec<String> {
    let file = Connection::open_in_memory().unwrap();
    file.execute_batch(include_str!("../../schema.sql")).unwrap();
    let mut explain =
        file.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let steps = explain.raw_query().mapped(|row| row.get(3)).collect::<rusqlite::Result<_>>();
    steps.unwrap()
}

#[track_caller]
fn assert_plan(sql: &str, index: &str) {
    let steps = plan(sql);
    assert!(steps.iter().any(|step| step.contains(index)), "no `{index}` in {steps:#?} of {sql}");
    for step in &steps {
        assert!(!walks(step) && !step.contains("TEMP B-TREE"), "`{step}` in {sql}");
    }
}

fn walks(step: &str) -> bool {
    // Of leases there are few.
    step.starts_with("SCAN") && step != "SCAN CONSTANT ROW" && step != "SCAN held"
}

#[test]
fn a_claim_reads_its_candidates_from_their_index_in_order() {
    for kinds in [1, 2, 7] {
        for (suspects, index) in [(false, "birkez_job_claim"), (true, "birkez_job_suspect")] {
            let sql = candidates(kinds, suspects);
            assert_plan(&sql, &format!("USING INDEX {index} (kind=?)"));
            let ranges = plan(&sql).iter().filter(|step| step.contains(index)).count();
            assert_eq!(ranges, kinds, "one range a kind");
        }
    }
    assert_plan(PRIORITY_BELOW, "birkez_job_claim (kind=? AND priority<?)");
    assert_plan(CANDIDATES_AT, "birkez_job_claim (kind=? AND priority=?)");
    assert_plan(CLAIM, "birkez_runner USING");
}

#[test]
fn what_comes_due_is_found_without_a_look_at_what_is_not() {
    assert_plan(LET_IN, "birkez_job_due (run_at<?)");
    // The first entry of the index: a scan of one row.
    let steps = plan(NEXT_DUE);
    assert_eq!(steps, ["SCAN main.birkez_job USING COVERING INDEX birkez_job_due"]);
    for index in ["birkez_job_claim", "birkez_job_suspect"] {
        assert!(plan(ANYTHING_CLAIMABLE).iter().any(|step| step.contains(&format!("{index} (kind=?)"))));
    }
    assert!(!plan(ANYTHING_CLAIMABLE).iter().any(|step| walks(step)), "{:#?}", plan(ANYTHING_CLAIMABLE));
}

#[test]
fn a_known_job_is_found_by_its_name_or_number() {
    let unique = "sqlite_autoindex_birkez_job_1 (kind=? AND key=?)";
    assert_plan(JOB_BY_KEY, unique);
    assert_plan(&job_by_name(), unique);
    assert_plan(&job_by_id(), "INTEGER PRIMARY KEY");
    let by_number = [
        SET_FINGERPRINT,
        CHARGE,
        HOLDS_LEASE,
        END_LEASE,
        WAS_SETTLED,
        SETTLE_DONE,
        SETTLE,
        TAKE_BACK,
        RUNNER_BEAT,
        BEAT,
        SET_IDEMPOTENCY,
        SET_HOLDS_KEY,
        PASS_OVER,
        SET_GATE,
        UNDO_INSERT,
        IS_THERE,
        STORE_STEP,
        NOTE_PROGRESS,
        RESOLVE,
        CALL_OFF,
        ASK_TO_STOP,
        IS_STOPPING,
        IS_ASKED,
        REPLAY,
        FIX_PAYLOAD,
        SENT,
    ];
    for sql in by_number {
        assert_plan(sql, "INTEGER PRIMARY KEY");
    }
    assert_plan(ATTEMPTS, "PRIMARY KEY (job_id=?)");
}

#[test]
fn a_page_of_what_needs_a_person_is_found_without_a_look_at_what_is_done() {
    for (condition, index) in [
        ("job.state = 3", "birkez_job_dead (state=? AND rowid<?)"),
        ("job.state = 4 AND job.kind IN (?1)", "birkez_job_cancelled (state=? AND rowid<?)"),
        ("job.state = 1 AND job.reason = ?1", "birkez_job_parked (reason=? AND rowid<?)"),
    ] {
        let steps = plan(&list_jobs(condition, 3));
        assert!(steps.iter().any(|step| step.contains(index)), "{condition}: {steps:#?}");
        assert!(steps.iter().all(|step| !walks(step) && !step.contains("TEMP B-TREE")), "{condition}: {steps:#?}");
    }
}

#[test]
fn nobody_walks_a_line() {
    let line = "birkez_job_line (ordering_key=?";
    assert_plan(HEAD_OF_LINE, line);
    let heads = plan(&held_lines());
    assert!(heads.iter().all(|step| !step.contains("birkez_job") || step.starts_with("SEARCH")), "{heads:#?}");
    for sql in [IS_SUPERSEDED, NOTE_VERSION] {
        assert!(plan(sql).iter().all(|step| !walks(step)), "{sql}");
    }
    for sql in [INSERT_JOB, LET_IN, SUPERSEDED] {
        assert!(plan(sql).iter().any(|step| step.contains(line)), "{:#?}", plan(sql));
    }
    assert_plan(CORRECTED_BY, "birkez_job_corrects (corrects=?)");
    assert_plan(STEP, "PRIMARY KEY (job_id=? AND name=?)");
    // From the leases, of which there are few: the line may be long.
    assert_eq!(plan(LINE_RUNS), ["SCAN lease", "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)"]);
}

#[test]
fn upkeep_goes_from_number_to_number_and_from_key_to_key() {
    let by_number = "INTEGER PRIMARY KEY";
    for sql in
        [FINISHED_FROM, DONE_BEFORE, FINISHED_JOB, RETIRE, REMOVE_JOB, OLD_DEEDS, DEEDS_UP_TO, OLD_MISSED, DROP_MISSED]
    {
        assert_plan(sql, by_number);
    }
    for sql in [OLD_REQUESTS, DROP_REQUEST, OLD_PRESENCE, DROP_PRESENCE, DROP_DEED, RENAME, CLOSE_TWIN] {
        assert_plan(sql, by_number);
    }
    assert_plan(DEAD_BEYOND, "birkez_job_dead (state=?)");
    assert_plan(CANCELLED_BEYOND, "birkez_job_cancelled (state=?)");
    assert_plan(DROP_KEPT_PAYLOADS, "birkez_event_job_of (job_id=?)");
    for sql in [DROP_STEPS, DROP_ATTEMPTS] {
        assert_plan(sql, "PRIMARY KEY (job_id=?)");
    }
    for sql in [DROP_PROGRESS, DROP_TOUCHED, DROP_LINK, KEEP_TURN, DROP_SLOT, OLD_SLOTS] {
        assert!(plan(sql).iter().all(|step| !walks(step)), "{:#?}", plan(sql));
    }
    assert!(plan(FINISHED_JOB).iter().any(|step| step.contains("birkez_job_line (ordering_key=?")));
    assert_plan(LINKS_FROM, "PRIMARY KEY ((schedule,occurrence,job_id)>(?,?,?))");
    assert_plan(JOBS_NAMED, "sqlite_autoindex_birkez_job_1 (kind=? AND key>?)");
    assert_plan(TWIN, "sqlite_autoindex_birkez_job_1 (kind=? AND key=?)");
}

#[test]
fn the_living_are_found_without_a_look_at_the_dead() {
    // The index holds nobody else, so that walking it is right.
    assert_eq!(plan(LIVE_RUNNERS), ["SCAN main.birkez_runner USING INDEX birkez_runner_live"]);
    assert_plan(SCHEDULE_BY_NAME, "(name=?)");
    assert_plan(MOVE_MARK, "INTEGER PRIMARY KEY");
    assert_plan(OCCURRENCES, "birkez_occurrence_due (schedule=?)");
    assert_plan(LAST_SUCCESS, "birkez_occurrence_due (schedule=?)");
    assert_plan(MADE_BETWEEN, "PRIMARY KEY (schedule=? AND occurrence>? AND occurrence<?)");
    assert_plan(LEFT_OUT_BETWEEN, "birkez_missed_last (schedule=? AND last>?)");
    assert_plan(LAST_RUN, "PRIMARY KEY (schedule=? AND occurrence=?)");
    assert_plan(HAS_RECORD, "birkez_missed_last (schedule=? AND last=?)");
    for index in ["birkez_missed_attention", "birkez_occurrence_attention", "birkez_request_open"] {
        assert!(plan(NEEDS_ATTENTION).iter().any(|step| step.contains(index)), "{:#?}", plan(NEEDS_ATTENTION));
    }
    let parked = select_jobs("job.state = 1 AND job.reason = ?1");
    assert_plan(&parked, "birkez_job_parked (reason=?)");
    assert_plan(RESUME, "INTEGER PRIMARY KEY (rowid=?)");
}

#[test]
fn what_is_held_back_and_why_is_found_without_a_walk_over_jobs() {
    let is_quick = |sql: &str| {
        let steps = plan(sql);
        let walked =
            steps.iter().find(|step| walks(step) && (step.contains("birkez_job") || step.contains("SCAN job")));
        assert_eq!(walked, None, "{sql}");
        steps
    };
    for (sql, index) in [
        (READY_OF_KIND, "birkez_job_claim (kind=?)"),
        (READY_OF_KIND, "birkez_job_suspect (kind=?)"),
        (READY_OF_KIND, "birkez_job_due (run_at<?)"),
        (RUNNING_KINDS, "job USING INTEGER PRIMARY KEY"),
        (HANDLED_BY, "birkez_presence_open (runner=?)"),
        (HANDLED_BY, "birkez_runner_live"),
        (PRESENCES_UPTO, "birkez_presence_of (what=? AND name=? AND since<?)"),
        (PRESENCE_AFTER, "birkez_presence_of (what=? AND name=? AND since>?)"),
        (HELD_IN, "lease USING INTEGER PRIMARY KEY"),
        (LAST_DEED_OF, "birkez_event_job_of (job_id=?)"),
        (OCCURRENCE, "PRIMARY KEY (schedule=? AND occurrence=?)"),
        (OCCURRENCES_DUE, "birkez_occurrence_due (schedule=? AND due_at>? AND due_at<?)"),
        (JOBS_OF_OCCURRENCE, "PRIMARY KEY (schedule=? AND occurrence=?)"),
        (UNFINISHED_OF, "PRIMARY KEY (schedule=? AND occurrence=?)"),
        (MISSED_WITH, "birkez_missed_last (schedule=? AND last>?)"),
        (MADE_BEFORE, "PRIMARY KEY (schedule=? AND occurrence<?)"),
        (MADE_AFTER, "PRIMARY KEY (schedule=? AND occurrence>?)"),
        (OPEN_REQUESTS, "birkez_request_open (schedule=?)"),
        (KIND_SAYS, "PRIMARY KEY (kind=?)"),
        (END_PRESENCE, "INTEGER PRIMARY KEY"),
        (CLOSE_PRESENCE, "birkez_presence_open (runner=?)"),
        (HAND_TO_SUPPORT, "INTEGER PRIMARY KEY"),
    ] {
        let steps = is_quick(sql);
        assert!(steps.iter().any(|step| step.contains(index)), "no `{index}` in {steps:#?} of {sql}");
    }
    let kinds = is_quick(KINDS_STORED);
    assert!(kinds.iter().any(|step| step.contains("sqlite_autoindex_birkez_job_1 (kind>?)")), "{kinds:#?}");
}

/// Steps that walk all jobs there are: neither an index that holds only what is asked for, nor the leases.
fn walks_jobs(sql: &str) -> Vec<String> {
    let partial = ["due", "claim", "suspect", "callers", "line", "dead", "parked"];
    let is_small = |step: &str| {
        partial.iter().any(|name| step.contains(&format!("INDEX birkez_job_{name}")))
            || !(step.contains("birkez_job") || step == "SCAN job")
    };
    plan(sql).into_iter().filter(|step| walks(step) && !is_small(step)).collect()
}

#[test]
fn whoever_watches_looks_at_no_finished_job_but_the_newest() {
    for sql in [running_jobs(), newest_dead(), newest_parked(), retrying_jobs(), completed_jobs()] {
        assert!(walks_jobs(&sql).is_empty(), "{:#?} of {sql}", plan(&sql));
    }
    // The largest number is read from the end of the table.
    for sql in [COUNT_OPEN, DIGEST] {
        assert!(walks_jobs(sql).is_empty(), "{:#?} of {sql}", plan(sql));
    }
    assert!(plan(BEATS).contains(&"SCAN main.birkez_runner USING INDEX birkez_runner_live".to_owned()));
}

#[test]
fn a_restore_looks_at_unfinished_jobs_only() {
    for gate in GATES {
        for sql in [record_waiting(gate), park_waiting(gate)] {
            assert!(walks_jobs(&sql).is_empty(), "{:#?} of {sql}", plan(&sql));
        }
    }
    for sql in [NOTE_UNKNOWN_ATTEMPTS, TAKE_BACK_ALL, RECORD_ALL_LEASED, STOPPING_KINDS] {
        assert!(walks_jobs(sql).is_empty(), "{:#?} of {sql}", plan(sql));
    }
}

/// What is finished is in no number but the counts: none of these looks at all jobs, which `INDEXED BY` enforces too.
#[test]
fn numbers_look_at_no_finished_job() {
    for (sql, index) in [
        (WAITING_READY, "birkez_job_claim"),
        (WAITING_SUSPECT, "birkez_job_suspect"),
        (WAITING_DUE, "birkez_job_due"),
        (WAITING_BEHIND, "birkez_job_line"),
        (WAITING_FOR_CALLERS, "birkez_job_callers"),
        (PARKED, "birkez_job_parked"),
        (PARKED_BY_REASON, "birkez_job_parked"),
        (NEWEST_DEATH, "birkez_job_dead"),
        (MISSED_ATTENTION, "birkez_missed_attention"),
        (MISSED_OF, "birkez_missed_attention"),
    ] {
        let steps = plan(sql);
        for step in steps.iter().filter(|step| step.contains("birkez_job") || step.contains("birkez_missed")) {
            assert!(step.contains(index) || step.contains("birkez_lease"), "`{step}` in {sql}");
        }
    }
    let running = plan(RUNNING);
    assert!(running.iter().any(|step| step.contains("SEARCH job USING INTEGER PRIMARY KEY")), "{running:#?}");
    let handled = plan(HANDLED_KINDS);
    for index in ["birkez_runner_live", "birkez_presence_open (runner=?)"] {
        assert!(handled.iter().any(|step| step.contains(index)), "{handled:#?}");
    }
    assert!(plan(TALLIED).iter().any(|step| step.contains("PRIMARY KEY (slot>? AND slot<?)")), "{:#?}", plan(TALLIED));
    assert!(plan(SIGNS).iter().any(|step| step.contains("birkez_runner_live")), "{:#?}", plan(SIGNS));
    let range = plan(JOB_RANGE);
    assert!(range.iter().all(|step| !step.starts_with("SCAN main.birkez_job") || step.contains("INDEX")), "{range:#?}");
    assert_plan(SAMPLE, "INTEGER PRIMARY KEY (rowid>?)");
    for sql in [DIED, JOB_KEY, CLAIMS, SCHEDULE_NAME] {
        assert_plan(sql, "INTEGER PRIMARY KEY (rowid=?)");
    }
}
