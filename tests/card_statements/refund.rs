//! Refunds: a compensating row by a job of its own, once, and nothing of what was posted is touched.

use std::time::Duration;

use birkez::{State, Store};
use serde_json::{Value, json};

use super::common::{ask, rounds, rows, run_sql};
use super::desk::{Desk, HEADER, data, dump, text};
use super::{THROUGH, chance};

/// Card a closes on the last of each month, card b on the 5th.
const PURCHASES: &str = "
p1,a,31,2024-01-15,Shop,1000,3,TRY
p2,a,31,2024-04-20,Shop,500,1,TRY
p3,b,5,2024-02-03,Shop,700,2,USD";
const REFUNDS: &str =
    "SELECT card_id || ' ' || statement_date || ' ' || purchase_id || ' ' || amount_minor || ' ' || currency
                       FROM ledger WHERE instalment = 0";

fn posted(through: &str) -> Desk {
    let desk = Desk::new(&format!("{HEADER}{PURCHASES}\n"));
    desk.post(&["--through", through]);
    desk
}

fn refunds(desk: &Desk) -> Vec<String> {
    rows(desk.db(), REFUNDS)
}

/// The refund is refused with this code and reason, in words and in JSON, and nothing is written.
#[track_caller]
fn refused(desk: &Desk, args: &[&str], code: &str, reason: &str) {
    let said = desk.refused(args);
    assert!(said.contains(reason), "{said}");
    let output = desk.run(&[args, &["--json"]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = &json["error"];
    assert_eq!((&error["code"], &error["kind"]), (&json!(code), &json!("refund")), "{error}");
    assert_eq!((&error["key"], &error["retryable"]), (&json!(args[1]), &json!(false)), "{error}");
}

#[test]
fn a_refund_is_one_row_beside_the_given_ledger_however_often_it_is_asked_for() {
    let desk = Desk::new(&data("purchases.csv"));
    desk.post(&["--through", THROUGH]);
    let given = data("ledger_through_2026-11-30.csv");
    let said = desk.post(&["--refund", "p00101"]);
    let what = "69287 minor units of EUR on the statement of card card-08 of 2026-12-25; job ";
    assert!(said.starts_with(&format!("Refunded purchase p00101: {what}")), "{said}");
    assert!(said.ends_with("the statement card-08/2024-01-25.\n"), "{said}");
    let row = "card-08,2026-12-25,p00101,0,-69287,EUR";
    let others: Vec<String> = desk.ledger().lines().filter(|line| *line != row).map(str::to_owned).collect();
    assert_eq!(others, given.lines().collect::<Vec<_>>());
    assert_eq!(desk.ledger().lines().count(), others.len() + 1);

    let before = dump(desk.db());
    for args in [&["--refund", "p00101"][..], &["--refund", "p00101", "--amount", "69287"]] {
        let said = desk.post(args);
        assert!(said.starts_with(&format!("Nothing to write: purchase p00101 is refunded: {what}")), "{said}");
        assert_eq!(dump(desk.db()), before, "a repeat wrote something");
    }
    let other = ["--refund", "p00101", "--amount", "69286"];
    refused(&desk, &other, "KEY_REUSED", "purchase p00101 is refunded already, with 69287 and not 69286");
    // A night's run that comes after it finds nothing amiss.
    assert!(desk.post(&["--through", THROUGH]).starts_with("Nothing to write: every statement through 2026-11-30"));
    assert_eq!(dump(desk.db()), before);
}

#[test]
fn the_refund_and_the_statement_show_each_other() {
    let desk = posted("2024-02-29");
    let said: Value = serde_json::from_str(&desk.post(&["--refund", "p1", "--amount", "400", "--json"])).unwrap();
    let store = Store::open(desk.db()).unwrap();
    let statement = store.find("post-statement", "a/2024-01-31").unwrap().unwrap();
    let refund = store.find("refund", "p1").unwrap().unwrap();
    let corrected = refund.corrects.unwrap();
    assert_eq!((corrected.id, corrected.state), (statement.id, State::Done));
    let corrections = store.corrections(statement.id).unwrap();
    assert_eq!(corrections.iter().map(|job| (job.id, job.state)).collect::<Vec<_>>(), [(refund.id, State::Done)]);
    assert_eq!((&said["job"], &said["corrects_job"]), (&json!(refund.id), &json!(statement.id)));
    assert_eq!((&said["corrections"], &said["fresh"]), (&json!([refund.id]), &json!(true)));
    assert_eq!(ask::<i64>(desk.db(), "SELECT job_id FROM posting WHERE instalment = 0"), refund.id);
}

#[test]
fn what_is_refused_leaves_no_row_and_no_job() {
    let desk = posted("2024-02-29");
    refused(&desk, &["--refund", "p9"], "UNKNOWN_PURCHASE", "there is no purchase \"p9\" to refund");
    // Its card and shop are no purchases.
    refused(&desk, &["--refund", "a"], "UNKNOWN_PURCHASE", "there is no purchase \"a\" to refund");
    for amount in ["0", "-1", "1001", "9223372036854775807"] {
        let reason = format!("of purchase p1, 1 to 1000 can be refunded, not {amount}");
        refused(&desk, &["--refund", "p1", "--amount", amount], "BAD_AMOUNT", &reason);
    }
    // Its first statement has not closed yet.
    refused(&desk, &["--refund", "p2"], "NOTHING_TO_CORRECT", "was to correct post-statement a/2024-04-30");
    assert_eq!(refunds(&desk), [""; 0]);

    let fresh = Desk::new(&format!("{HEADER}{PURCHASES}\n"));
    assert!(fresh.refused(&["--refund", "p1"]).contains("no statement has been posted"));
    assert!(!fresh.db().exists(), "a database was made");
    // Purchases that were changed behind the ledger's back are found out here, too.
    desk.write(format!("{HEADER}{PURCHASES}\n").replace("1000,3", "1001,3"));
    assert!(desk.refused(&["--refund", "p1"]).contains("the statement of card a of 2024-01-31 is closed"));
}

#[test]
fn after_a_refund_the_walk_goes_on_and_a_refunded_purchase_comes_to_nothing() {
    let desk = posted("2024-02-29");
    desk.post(&["--refund", "p1"]);
    desk.post(&["--refund", "p3", "--amount", "200"]);
    assert_eq!(refunds(&desk), [r#"[Text("a 2024-03-31 p1 -1000 TRY")]"#, r#"[Text("b 2024-03-05 p3 -200 USD")]"#]);
    let said: Value = serde_json::from_str(&desk.post(&["--json"])).unwrap();
    let fresh = posted("2024-04-30");
    let posted_rows = "SELECT * FROM ledger WHERE instalment > 0 ORDER BY rowid";
    assert_eq!(rows(desk.db(), posted_rows), rows(fresh.db(), posted_rows));
    assert_eq!(ask::<i64>(desk.db(), "SELECT sum(amount_minor) FROM ledger WHERE purchase_id = 'p1'"), 0);
    let balances: Vec<_> = said["cards"].as_array().unwrap().iter().map(|card| &card["balance_minor"]).collect();
    assert_eq!(balances, [&json!(500), &json!(500)]);
    assert_eq!((&said["cards"][0]["refunds"], &said["cards"][0]["rows"]), (&json!(1), &json!(5)));
    // Long afterwards it is still the same refund, on the same statement.
    let before = dump(desk.db());
    let said = desk.post(&["--refund", "p1"]);
    assert!(said.contains("is refunded: 1000 minor units of TRY on the statement of card a of 2024-03-31;"), "{said}");
    assert_eq!(dump(desk.db()), before);
}

#[test]
fn a_refund_that_is_killed_at_any_moment_and_asked_for_again_is_one_row() {
    let mut chance = chance();
    let (rounds, mut cut) = (rounds("BIRKEZ_REFUND_KILLS", 20), 0);
    for round in 0..rounds {
        let desk = posted("2024-02-29");
        let mut run = desk.command(&["--refund", "p1"]).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(chance.u64(0..25_000)));
        run.kill().unwrap();
        run.wait().unwrap();
        cut += u32::from(refunds(&desk).is_empty());
        desk.post(&["--refund", "p1"]);
        assert_eq!(refunds(&desk), [r#"[Text("a 2024-03-31 p1 -1000 TRY")]"#], "round {round}");
        assert_eq!(
            ask::<i64>(desk.db(), "SELECT count(*) FROM birkez_jobs WHERE kind = 'refund' AND state = 'done'"),
            1
        );
    }
    println!("{cut} of {rounds} kills came before the row");
}

#[test]
fn a_refund_that_a_killed_run_has_left_is_written_by_the_next_night() {
    let desk = posted("2024-02-29");
    run_sql(
        desk.db(),
        r#"INSERT INTO birkez_job (kind, key, payload) VALUES ('refund', 'p1', '{"purchase_id":"p1","amount_minor":1000,
           "currency":"TRY","card_id":"a","statement_date":"2024-03-31","corrected":"a/2024-01-31"}')"#,
    );
    desk.post(&["--through", "2024-02-29"]);
    assert_eq!(refunds(&desk), [r#"[Text("a 2024-03-31 p1 -1000 TRY")]"#]);
}

#[test]
fn a_refund_asked_for_by_five_at_once_is_one_row_and_each_is_told() {
    let desk = posted("2024-02-29");
    let runs: Vec<_> = (0..5).map(|_| desk.command(&["--refund", "p1"]).spawn().unwrap()).collect();
    let said: Vec<_> = runs.into_iter().map(|run| run.wait_with_output().unwrap()).collect();
    assert!(said.iter().all(|output| output.status.success()), "{said:?}");
    let fresh = said.iter().filter(|output| text(&output.stdout).starts_with("Refunded purchase p1: ")).count();
    assert_eq!((fresh, refunds(&desk).len()), (1, 1), "{said:?}");
}
