//! Purchases that change between two runs: what concerns a closed statement is refused whole, everything else goes on.

use serde_json::Value;

use super::desk::{Desk, HEADER, dump, text};

/// Card a closes on the last of each month, card b on the 5th.
const ROWS: [&str; 4] = [
    "p1,a,31,2024-01-15,Shop,1000,3,TRY",
    "p2,a,31,2024-04-20,Shop,500,1,TRY",
    "p3,b,5,2024-02-03,Shop,700,2,USD",
    "p4,a,31,2024-06-10,Shop,900,6,TRY",
];
/// Of the statements after p1 to p3, that of a in May and those of b from April on have no rows.
const CLOSED: &str = "2024-06-15";
const LATER: &str = "2024-08-31";

fn file(rows: &[impl AsRef<str>]) -> String {
    rows.iter().fold(HEADER.to_owned(), |file, row| file + "\n" + row.as_ref()) + "\n"
}

/// The rows with one of them replaced, or left out.
fn with(purchase: &str, instead: Option<&str>) -> Vec<String> {
    let same = |row: &&str| row.split(',').next() == Some(purchase);
    let rows = ROWS.iter().filter_map(|row| if same(row) { instead } else { Some(*row) });
    rows.map(str::to_owned).collect()
}

fn and(row: &str) -> Vec<String> {
    ROWS.iter().chain([&row]).map(|row| (*row).to_owned()).collect()
}

fn posted() -> Desk {
    let desk = Desk::new(&file(&ROWS));
    desk.post(&["--through", CLOSED]);
    desk
}

/// The changed file is refused with this statement and purchase, in words and in JSON, and nothing is written; the
/// original is still good afterwards.
#[track_caller]
fn refused(desk: &Desk, rows: &[String], card: &str, date: &str, about: &str) {
    desk.write(file(rows));
    let said = desk.refused(&["--through", LATER]);
    assert!(said.contains(&format!("the statement of card {card} of {date} is closed")), "{said}");
    assert!(said.contains(about), "{said}");

    let output = desk.run(&["--json", "--through", CLOSED]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = &json["error"];
    assert_eq!((&error["code"], &error["key"]), (&Value::from("KEY_REUSED"), &format!("{card}/{date}").into()));
    assert_eq!((&error["card_id"], &error["statement_date"]), (&card.into(), &date.into()));
    assert!(text(&output.stderr).contains(error["message"].as_str().unwrap()));

    desk.write(file(&ROWS));
    desk.post(&["--through", CLOSED]);
}

#[test]
fn a_purchase_changed_for_a_closed_statement_is_reported_and_nothing_is_written() {
    let desk = posted();
    let change = |purchase, instead| with(purchase, Some(instead));
    let amount = "purchase p1 is changed (instalment 1 of 334 to 1 of 335)";
    refused(&desk, &change("p1", "p1,a,31,2024-01-15,Shop,1001,3,TRY"), "a", "2024-01-31", amount);
    refused(&desk, &change("p1", "p1,a,31,2024-01-15,Shop,1000,2,TRY"), "a", "2024-01-31", "purchase p1 is changed");
    refused(&desk, &change("p2", "p2,a,31,2024-05-01,Shop,500,1,TRY"), "a", "2024-04-30", "purchase p2 is missing");
    refused(&desk, &change("p3", "p3,b,5,2024-02-06,Shop,700,2,USD"), "b", "2024-02-05", "purchase p3 is missing");
    refused(&desk, &change("p3", "p3,b,6,2024-02-03,Shop,700,2,USD"), "b", "2024-02-05", "purchase p3 is missing");
    refused(
        &desk,
        &change("p3", "p3,b,5,2024-02-03,Shop,700,2,EUR"),
        "b",
        "2024-02-05",
        "its currency was USD and is EUR",
    );
    refused(
        &desk,
        &change("p2", "p9,a,31,2024-04-20,Shop,500,1,TRY"),
        "a",
        "2024-04-30",
        "purchase p2 is missing, purchase p9 is added",
    );
}

#[test]
fn a_purchase_missing_for_a_closed_statement_is_reported_and_nothing_is_written() {
    let desk = posted();
    refused(&desk, &with("p2", None), "a", "2024-04-30", "purchase p2 is missing");
    // With its first purchase the card's first three statements go.
    refused(&desk, &with("p1", None), "a", "2024-01-31", "purchase p1 is missing (and 2 more statements)");
    // With its only purchase the whole card goes, empty statements too.
    refused(&desk, &with("p3", None), "b", "2024-02-05", "purchase p3 is missing (and 4 more statements)");
    refused(&desk, &[], "a", "2024-01-31", "purchase p1 is missing (and 9 more statements)");
}

#[test]
fn a_purchase_added_for_a_closed_statement_is_reported_and_nothing_is_written() {
    let desk = posted();
    let added = "purchase px is added";
    refused(&desk, &and("px,a,31,2024-02-10,Shop,5,1,TRY"), "a", "2024-02-29", added);
    // The statement had no rows.
    refused(&desk, &and("px,a,31,2024-05-31,Shop,5,1,TRY"), "a", "2024-05-31", added);
    // Before anything else of its card, and of all.
    refused(&desk, &and("px,b,5,2023-01-05,Shop,5,1,USD"), "b", "2023-01-05", added);
    // Its last instalments are open, its first is not.
    refused(&desk, &and("px,b,5,2024-06-05,Shop,500,9,USD"), "b", "2024-06-05", added);
    // A card that nothing was known of.
    refused(&desk, &and("px,c,15,2024-06-15,Shop,5,1,EUR"), "c", "2024-06-15", added);
}

#[test]
fn what_concerns_no_closed_statement_may_change_and_is_posted_as_if_it_had_always_been_so() {
    let rows = [
        // Another name of a shop, another order, and another total of what is still open.
        "p4,a,31,2024-06-10,Shop,903,6,TRY",
        "p3,b,5,2024-02-03,\"Shop, \"\"new\"\" name\",700,2,USD",
        "p1,a,31,2024-01-15,Shop,1000,3,TRY",
        "p2,a,31,2024-04-20,,500,1,TRY",
        // More for a card that is known, and for one that is not.
        "p5,a,31,2024-06-16,Shop,100,3,TRY",
        "p6,b,5,2024-06-06,Shop,100,3,USD",
        "p7,c,16,2024-06-16,Shop,100,3,EUR",
    ];
    let desk = posted();
    let closed = desk.ledger();
    desk.write(file(&rows));
    desk.post(&[]);
    let fresh = Desk::new(&file(&rows));
    fresh.post(&[]);
    assert_eq!(desk.ledger(), fresh.ledger());
    assert!(closed.lines().all(|row| desk.ledger().contains(row)));
    // And now those are closed too.
    let before = dump(desk.db());
    let said = desk.post(&[]);
    assert!(said.starts_with("Nothing to write: every statement through 2024-11-30 is posted"), "{said}");
    assert_eq!(dump(desk.db()), before);
}

#[test]
fn a_statement_that_cannot_be_posted_ends_the_run_and_is_tried_again_by_the_next() {
    let desk = Desk::new(&file(&ROWS));
    desk.post(&["--through", "2024-01-31"]);
    let in_the_way = "INSERT INTO ledger VALUES ('a', '2024-02-29', 'p1', 2, 1, 'TRY')";
    super::common::run_sql(desk.db(), in_the_way);
    // The statement closes in the last night: what is tried again is all that is left.
    let until = ["--through", "2024-02-29", "--json"];
    for _ in 0..2 {
        let output = desk.run(&until);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("the statement a/2024-02-29 is not posted, its job is waiting: "), "{said}");
        assert!(said.contains("UNIQUE constraint failed"), "{said}");
        let output = desk.run(&[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!desk.ledger().contains("2024-03"), "the run went on");
    }
    super::common::run_sql(desk.db(), "DELETE FROM ledger WHERE amount_minor = 1");
    let said: Value = serde_json::from_str(&desk.post(&until)).unwrap();
    assert_eq!((&said["nights_walked"], &said["rows_written"]), (&0.into(), &1.into()));
    desk.post(&[]);
    let fresh = Desk::new(&file(&ROWS));
    fresh.post(&[]);
    assert_eq!(desk.ledger(), fresh.ledger());
}
