//! The examples `outbox`, `payment` and `desktop`, run as programs; what they left behind is read with plain SQL.
//!
//! What can go wrong: an example that tells a good story and does something else; one that would not notice it.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use birkez::testing::TempStore;
use birkez::{Class, State, Store};

use self::common::example::example;
use self::common::{ask, rows};

fn run(name: &str, file: &Path) -> Output {
    Command::new(example(name)).arg(file).output().unwrap()
}

/// Runs an example to its good end; answers what it said.
#[track_caller]
fn story(name: &str, file: &Path) -> String {
    let output = run(name, file);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn says(story: &str, lines: &[&str]) {
    assert_eq!(story.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn the_outbox_sends_what_was_committed_and_nothing_else() {
    let folder = TempStore::new().unwrap();
    let db = folder.path();
    says(
        &story("outbox", db),
        &[
            "A shop sold for 12.50 and died right after COMMIT; its message is in the file and nowhere else.",
            "A sale for 999.00 was rolled back, and its message with it.",
            r#"The first move was refused twice; they arrived as ["Alder Street","Birch Street","Cedar Street"]."#,
            "An answer was lost; 1 repeat came with a known id and was dropped.",
            "Checked: 5 rows committed, 5 messages arrived, each once.",
        ],
    );
    assert_eq!(ask::<String>(db, "SELECT group_concat(minor) FROM sale"), "1250,4500");
    // One message for each row, all of them out; nothing of the sale that was rolled back, whose number was taken again.
    let message =
        "SELECT kind, key, json_extract(payload, '$.minor'), json_extract(payload, '$.street') FROM birkez_job
                   WHERE state = 2 ORDER BY kind, key";
    let row = "SELECT 'customer-moved', CAST(id AS TEXT), NULL, street FROM move UNION ALL
               SELECT 'sale-made', CAST(id AS TEXT), minor, NULL FROM sale";
    assert_eq!(rows(db, message), rows(db, row));
    assert_eq!(ask::<i64>(db, "SELECT count(*) FROM birkez_job"), 5);
    // The moves came to their end in the order in which they were committed, and only the first was ever refused.
    let order = "SELECT group_concat(key) FROM (SELECT key FROM birkez_job WHERE kind = 'customer-moved'
                 ORDER BY finished_at, id)";
    assert_eq!(ask::<String>(db, order), "1,2,3");
    let refused = "SELECT kind, key, count(*) FROM birkez_attempt JOIN birkez_job ON birkez_job.id = job_id
                   GROUP BY kind, key ORDER BY kind";
    assert_eq!(rows(db, refused).len(), 2, "{:?}", rows(db, refused));
    assert!(rows(db, refused)[0].contains(r#"Text("1"), Integer(2)"#), "{:?}", rows(db, refused));
}

#[test]
fn the_payment_is_charged_once_and_its_text_is_resolved_by_a_person() {
    let folder = TempStore::new().unwrap();
    let db = folder.path();
    says(
        &story("payment", db),
        &[
            "Invoice 2026-118 was charged, and the program died before it could note that.",
            "Started again, it asked the provider again, under the same key: nothing was charged twice.",
            "The text about invoice 2026-119 broke off in its middle and is parked as unknown_outcome.",
            "A person found it in the gateway's log and resolved it as done.",
            "Checked: asked 3 times, charged twice, 2 ledger rows with the provider's references, 2 texts.",
        ],
    );
    let provider = std::fs::read_to_string(db.with_extension("provider")).unwrap();
    let lines: Vec<Vec<&str>> = provider.lines().map(|line| line.split(' ').collect()).collect();
    let of = |word, invoice| lines.iter().filter(move |line| line[0] == word && line[2] == invoice);
    assert_eq!((of("asked", "2026-118").count(), of("charged", "2026-118").count()), (2, 1), "{provider}");
    assert_eq!((of("asked", "2026-119").count(), of("charged", "2026-119").count()), (1, 1), "{provider}");
    let keys: std::collections::HashSet<_> = of("asked", "2026-118").map(|line| line[1]).collect();
    assert_eq!(keys.len(), 1, "one invoice was charged under two keys: {provider}");

    let ledger = "SELECT invoice || ' ' || minor || ' ' || reference FROM ledger ORDER BY rowid";
    assert_eq!(rows(db, ledger), [r#"[Text("2026-118 -4500 ch_1")]"#, r#"[Text("2026-119 -1250 ch_2")]"#]);

    let store = Store::open(db).unwrap();
    let payment = store.find("pay-invoice", "2026-118").unwrap().unwrap();
    assert_eq!((payment.state, payment.attempts), (State::Done, 1));
    assert_eq!(store.steps(payment.id).unwrap()[0].output, "\"ch_1\"");
    let text = store.find("text-customer", "2026-119").unwrap().unwrap();
    let lost = text.last_failure.unwrap();
    assert_eq!((text.state, lost.class), (State::Done, Class::UnknownOutcome));
    assert_eq!(store.attempts(text.id).unwrap().len(), 1, "the text was started again");
}

#[test]
fn the_desktop_app_shows_what_changes_and_goes_on_where_it_quit() {
    let folder = TempStore::new().unwrap();
    let db = folder.path();
    says(
        &story("desktop", db),
        &[
            "First run:",
            r#"  completed: the recording "memo""#,
            "  at work: concert (minute 4 of 20), interview (minute 4 of 8), lecture (minute 4 of 9); 1 more waits for its turn",
            r#"  called off: the recording "concert""#,
            "  quit: 3 jobs running (interview, lecture, meeting): they go on at the next start",
            "Second run, one at a time:",
            r#"  completed: the recording "lecture""#,
            r#"  completed: the recording "interview""#,
            r#"  completed: the recording "meeting""#,
            "  nothing is left to do, 0 jobs need attention",
            "Checked: 25 minutes of 4 recordings written once, 4 of the concert; nobody was charged for the quit.",
        ],
    );
    let minutes = "SELECT recording || ' ' || count(*) || ' ' || count(DISTINCT minute) FROM minute GROUP BY recording";
    let expected = ["concert 4 4", "interview 8 8", "lecture 9 9", "meeting 6 6", "memo 2 2"];
    assert_eq!(rows(db, minutes), expected.map(|line| format!("[Text({line:?})]")));
    let ended = "SELECT key || ' ' || state || ' ' || attempts FROM birkez_jobs WHERE key <> 'concert' ORDER BY key";
    let expected = ["interview done 1", "lecture done 1", "meeting done 1", "memo done 1"];
    assert_eq!(rows(db, ended), expected.map(|line| format!("[Text({line:?})]")));
    assert_eq!(ask::<String>(db, "SELECT state FROM birkez_jobs WHERE key = 'concert'"), "cancelled");
    assert_eq!(ask::<String>(db, "SELECT who || ': ' || why FROM birkez_event"), "a person: it is music");
    // The three that ran at the quit were interrupted, once and uncharged.
    let interrupted = "SELECT count(*) FROM birkez_attempt WHERE class = 'interrupted' AND charged = 0";
    assert_eq!(ask::<i64>(db, interrupted), 3);
}

#[test]
fn an_example_refuses_a_file_that_is_there_already_and_changes_nothing_in_it() {
    let folder = TempStore::new().unwrap();
    std::fs::write(folder.path(), "somebody's").unwrap();
    for name in ["outbox", "payment", "desktop"] {
        let output = run(name, folder.path());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("is there already: name a file to make"),
            "{output:?}"
        );
    }
    assert_eq!(std::fs::read(folder.path()).unwrap(), b"somebody's");
}
