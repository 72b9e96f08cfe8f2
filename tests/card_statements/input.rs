//! Input files of all kinds: bad rows, odd spellings, edges of the calendar, and random ones against a plain reckoning.

use std::fmt::Write;
use std::process::Command;

use birkez::testing::TempStore;
use chrono::{Datelike, NaiveDate, TimeDelta};
use serde_json::Value;

use super::common::{ask, rounds};
use super::desk::{Desk, HEADER, data, program, text};

const GOOD: &str = "p1,a,31,2024-01-15,Shop,1000,3,TRY";

/// The file is refused with this line and reason before a database is made.
#[track_caller]
fn bad(file: impl AsRef<[u8]>, line: usize, reason: &str) {
    let desk = Desk::new("");
    desk.write(file);
    let said = desk.refused(&["--json"]);
    assert!(said.contains(&format!("purchases.csv, line {line}: ")), "{said}");
    assert!(said.contains(reason), "{reason} is not in {said}");
    assert!(!desk.db().exists(), "a database was made");
    let output = desk.run(&["--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["error"]["code"], &json["error"]["line"]), (&"BAD_ROW".into(), &line.into()));
}

#[track_caller]
fn bad_row(row: &str, reason: &str) {
    bad(format!("{HEADER}\n{GOOD}\n{row}\n"), 3, reason);
    // The line is counted as an editor does: ends of any kind, blank lines, and fields of several lines.
    bad(format!("{HEADER}\r\n\r\n{}\r\n\n\n{row}", GOOD.replace("Shop", "\"Sh\r\nop\"")), 7, reason);
}

#[test]
fn a_bad_row_is_an_error_with_its_line_before_anything_is_written() {
    bad_row("p2,a,31,2024-01-15,Shop,0,3,TRY", "total_minor \"0\" is not a whole number from 1 to 9223372036854775807");
    for total in ["-5", "+5", "12.50", "1 000", "", " 5", "9223372036854775808", "0x10", "١٢"] {
        bad_row(&format!("p2,a,31,2024-01-15,Shop,{total},3,TRY"), "total_minor");
    }
    for count in ["0", "-1", "1.5", "", "4294967296", "99999999999999999999"] {
        bad_row(&format!("p2,a,31,2024-01-15,Shop,5,{count},TRY"), "instalments");
    }
    bad_row("p2,a,31,2024-01-15,Shop,5,5000,TRY", "the last of 5000 instalments would be after the year 2100");
    for day in ["0", "32", "-1", "", "x", "310"] {
        bad_row(&format!("p2,b,{day},2024-01-15,Shop,5,3,TRY"), "statement_day");
    }
    for date in [
        "2024-02-30",
        "2023-02-29",
        "15.01.2024",
        "2024-1-15",
        "2024-01-15 ",
        "",
        "2024-00-10",
        "1969-12-31",
        "2101-01-01",
    ] {
        bad_row(&format!("p2,a,31,{date},Shop,5,3,TRY"), "purchase_date");
    }
    bad_row("p1,a,31,2024-02-15,Shop,5,3,TRY", "purchase_id \"p1\" is in line");
    bad_row("p1,b,5,2024-02-15,Shop,5,3,USD", "purchase_id \"p1\" is in line");
    bad_row("p2,a,30,2024-02-15,Shop,5,3,TRY", "card \"a\" has statement_day 30 here and 31 in line");
    bad_row("p2,a,31,2024-02-15,Shop,5,3,USD", "card \"a\" has currency \"USD\" here and \"TRY\" in line");
    bad_row(",a,31,2024-01-15,Shop,5,3,TRY", "purchase_id is empty");
    bad_row("p2,,31,2024-01-15,Shop,5,3,TRY", "card_id is empty");
    bad_row("p2,a,31,2024-01-15,Shop,5,3,", "currency is empty");
    bad_row("p\0,a,31,2024-01-15,Shop,5,3,TRY", "purchase_id \"p\\0\" holds a control character");
    bad_row(&format!("p2,{},31,2024-01-15,Shop,5,3,TRY", "x".repeat(502)), "card_id is longer than 501 bytes");
    bad_row("p2,a,31,2024-01-15,Shop,5,3", "7 fields where the first line has 8");
    bad_row("p2,a,31,2024-01-15,Shop,more,5,3,TRY", "9 fields where the first line has 8");
    bad_row("p2,a,31,2024-01-15,\"Shop,5,3,TRY", "5 fields where the first line has 8");
    bad_row("  ", "1 fields where the first line has 8");
}

#[test]
fn a_file_that_is_no_such_table_is_an_error_with_its_line() {
    bad("", 1, "the line that names the columns is missing");
    bad("\u{feff}\n\n", 1, "the line that names the columns is missing");
    bad(GOOD, 1, "column purchase_id is missing");
    bad(format!("{}\n{GOOD}\n", HEADER.replace("instalments", "count")), 1, "column instalments is missing");
    bad(format!("{HEADER},card_id\n{GOOD},b\n"), 1, "column card_id is named twice");
    let latin1 = [HEADER.as_bytes(), b"\n", GOOD.as_bytes(), b"\np2,a,31,2024-01-15,Caf\xe9,5,3,TRY\n"].concat();
    bad(latin1, 3, "merchant is not UTF-8");
    let utf16: Vec<u8> = format!("\u{feff}{HEADER}\n").encode_utf16().flat_map(u16::to_le_bytes).collect();
    bad(utf16, 1, "column purchase_id is missing");
}

#[test]
fn the_spelling_of_the_file_makes_no_other_ledger() {
    let rows = ["p1,a,31,2024-01-15,Shop,1000,3,TRY", "p2,b,5,2024-02-03,Café,700,2,USD"];
    let plain = Desk::new(&format!("{HEADER}\n{}\n{}\n", rows[0], rows[1]));
    plain.post(&[]);
    let quoted = |row: &str| format!("\"{}\"", row.replace(',', "\",\""));
    let turned = "note,currency,instalments,total_minor,merchant,purchase_date,statement_day,card_id,purchase_id";
    let spellings = [
        format!("\u{feff}{HEADER}\r\n{}\r\n{}\r\n\r\n", rows[0], rows[1]),
        format!("{HEADER}\r{}\r{}", rows[0], rows[1]),
        format!("\n{}\n\n{}\n{}\n\n\n", quoted(HEADER), quoted(rows[1]), quoted(rows[0])),
        format!(
            "{HEADER}\n{}\n{}",
            rows[0].replace("Shop", "\"a \"\"shop\"\",\nand more\""),
            rows[1].replace(",5,", ",05,")
        ),
        format!("{turned}\nx,TRY,3,1000,Shop,2024-01-15,31,a,p1\n,USD,2,700,Café,2024-02-03,5,b,p2"),
    ];
    for spelling in spellings {
        // In a file of its own, and as a repeat of what was posted.
        let desk = Desk::new(&spelling);
        desk.post(&[]);
        assert_eq!(desk.ledger(), plain.ledger(), "{spelling}");
        plain.write(&spelling);
        let said = plain.post(&[]);
        assert!(said.starts_with("Nothing to write: every statement through 2024-03-31 is posted"), "{said}");
    }
}

#[test]
fn a_night_without_three_o_clock_and_the_calendars_edges_post_like_any_other() {
    // Istanbul's clocks skipped 03:00 on 2015-03-29 and showed it twice on 2015-11-08.
    let desk = Desk::new(&format!(
        "{HEADER}\np1,a,29,2015-03-29,Shop,1,1,TRY\np2,b,28,2015-03-29,Shop,5,1,TRY\np3,c,8,2015-10-09,Shop,7,2,TRY\n"
    ));
    desk.post(&[]);
    let at = |sql: &str| ask::<String>(desk.db(), &format!("SELECT group_concat(posted_at) FROM posting WHERE {sql}"));
    assert_eq!(at("purchase_id = 'p1'"), "2015-03-29T01:00:00Z");
    assert_eq!(at("purchase_id = 'p2'"), "2015-04-28T00:00:00Z");
    assert_eq!(at("purchase_id = 'p3' AND instalment = 1"), "2015-11-08T00:00:00Z");
    assert_eq!(ask::<i64>(desk.db(), "SELECT count(*) FROM ledger"), 4);

    for (day, date) in [(1, "1970-01-01"), (31, "2100-12-31")] {
        let desk = Desk::new(&format!("{HEADER}\np1,a,{day},{date},Shop,9,1,TRY\n"));
        desk.post(&[]);
        assert_eq!(desk.ledger().lines().nth(1), Some(format!("a,{date},p1,1,9,TRY").as_str()));
        assert!(desk.post(&[]).starts_with("Nothing to write"));
    }
}

/// One purchase, as the test draws it.
struct Drawn {
    card: usize,
    bought: NaiveDate,
    total: i64,
    count: u32,
}

const CARDS: [(&str, u32, &str); 6] = [
    ("a/1", 1, "TRY"),
    ("b", 28, "USD"),
    ("c", 29, "TRY"),
    ("ç d", 30, "EUR"),
    ("e,\"e\"", 31, "TRY"),
    ("f", 15, "TRY"),
];

/// The ledger by a reckoning that looks at one day after another.
fn reckon(purchases: &[Drawn]) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    for (number, purchase) in purchases.iter().enumerate() {
        let (card, day, currency) = CARDS[purchase.card];
        let closes = |date: &NaiveDate| {
            let ends_month = date.succ_opt().unwrap().day() == 1;
            date.day() == day || ends_month && date.day() < day
        };
        let share = purchase.total / i64::from(purchase.count);
        let first = purchase.total - share * i64::from(purchase.count - 1);
        let dates = purchase.bought.iter_days().filter(closes).take(purchase.count as usize);
        for (date, instalment) in dates.zip(1..) {
            let amount = if instalment == 1 { first } else { share };
            let cells = [
                card,
                &date.to_string(),
                &format!("p{number}"),
                &format!("{instalment}"),
                &amount.to_string(),
                currency,
            ];
            rows.push(cells.map(str::to_owned));
        }
    }
    rows.sort_by(|a, b| (&a[..3], a[3].parse::<u32>().ok()).cmp(&(&b[..3], b[3].parse::<u32>().ok())));
    rows
}

fn draw(chance: &mut fastrand::Rng) -> Vec<Drawn> {
    let start = NaiveDate::from_ymd_opt(2023, 10, 20).unwrap();
    let one = |chance: &mut fastrand::Rng| Drawn {
        card: chance.usize(0..CARDS.len()),
        bought: start + TimeDelta::days(chance.i64(0..240)),
        total: if chance.u8(0..8) == 0 {
            i64::MAX - chance.i64(0..100)
        } else {
            1 << chance.u32(0..40) | chance.i64(0..64)
        },
        count: if chance.u8(0..4) == 0 { 1 } else { chance.u32(1..24) },
    };
    (0..80).map(|_| one(chance)).collect()
}

fn table(purchases: &[Drawn]) -> String {
    let mut file = HEADER.to_owned() + "\r\n";
    for (number, Drawn { card, bought, total, count }) in purchases.iter().enumerate() {
        let (card, day, currency) = CARDS[*card];
        let card = card.replace('"', "\"\"");
        write!(file, "p{number},\"{card}\",{day},{bought},\"a, \"\"shop\"\"\",{total},{count},{currency}\r\n").unwrap();
    }
    file
}

#[test]
fn random_purchases_give_the_ledger_and_the_balances_of_a_plain_reckoning() {
    let mut chance = super::chance();
    for _ in 0..rounds("BIRKEZ_STATEMENT_FILES", 2) {
        let purchases = draw(&mut chance);
        let rows = reckon(&purchases);
        let desk = Desk::new(&table(&purchases));
        // Once on the way and once to the end.
        desk.post(&["--through", "2024-03-10"]);
        let said: Value = serde_json::from_str(&desk.post(&["--json"])).unwrap();
        let ledger = desk.ledger();
        let mut reader = csv::Reader::from_reader(ledger.as_bytes());
        let found: Vec<[String; 6]> =
            reader.records().map(|row| std::array::from_fn(|at| row.as_ref().unwrap()[at].to_owned())).collect();
        assert_eq!(found, rows);
        assert_eq!(said["ledger_rows"], rows.len());
        for (card, _, currency) in CARDS {
            let of_card = rows.iter().filter(|row| row[0] == card).map(|row| row[4].parse::<i128>().unwrap());
            let (count, sum) = (of_card.clone().count(), of_card.sum::<i128>());
            let balance = said["cards"].as_array().unwrap().iter().find(|balance| balance["card_id"] == card).unwrap();
            assert_eq!((&balance["currency"], &balance["rows"]), (&currency.into(), &count.into()));
            // Beyond 64 bits a JSON reader may round; the digits are compared where they are exact.
            if let Ok(sum) = i64::try_from(sum) {
                assert_eq!(balance["balance_minor"], sum);
            }
        }
    }
}

#[test]
fn without_arguments_it_finds_its_own_purchases_and_makes_panel_db_where_it_stands() {
    let folder = TempStore::new().unwrap();
    let here = folder.path().parent().unwrap();
    let run = |args: &[&str]| Command::new(program()).args(args).current_dir(here).output().unwrap();
    let output = run(&["--through=2024-02-05"]);
    assert!(output.status.success(), "{output:?}");
    let expected: Vec<_> = data("ledger_through_2026-11-30.csv").lines().skip(1).map(str::to_owned).collect();
    let until = expected.iter().filter(|row| row.split(',').nth(1) <= Some("2024-02-05")).count();
    assert_eq!(ask::<i64>(&here.join("panel.db"), "SELECT count(*) FROM ledger"), until as i64);

    // Without a date it goes to the last instalment.
    let output = run(&["--json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["purchases"], &said["through"]), (&600.into(), &"2028-03-30".into()));
    assert_eq!((&said["closed_through"], &said["ledger_rows"]), (&"2028-03-30".into(), &3413.into()));
    let total: i64 = said["cards"].as_array().unwrap().iter().map(|card| card["balance_minor"].as_i64().unwrap()).sum();
    let given = data("purchases.csv");
    let mut given = csv::Reader::from_reader(given.as_bytes());
    let paid: i64 = given.records().map(|row| row.unwrap()[5].parse::<i64>().unwrap()).sum();
    assert_eq!(total, paid, "every purchase is paid off");
}

#[test]
fn nothing_that_closes_yet_is_no_error_and_nothing_to_read_is_one() {
    let desk = Desk::new(&format!("{HEADER}\n{GOOD}\n"));
    let said = desk.post(&["--through", "2023-12-31"]);
    assert!(said.starts_with("Nothing to write"), "{said}");
    desk.post(&["--through", "2024-02-01"]);
    assert_eq!(desk.ledger().lines().count(), 2);

    let desk = Desk::new(&format!("{HEADER}\n"));
    assert!(desk.post(&[]).starts_with("Nothing to write"));
    std::fs::remove_file(desk.csv()).unwrap();
    assert!(desk.refused(&[]).contains("cannot read the purchases in"));
}

#[test]
fn wrong_usage_ends_with_2_and_says_how_it_is_used() {
    let desk = Desk::new("");
    let wrong: [&[&str]; 16] = [
        &["--verbose"],
        &["more"],
        &["--through"],
        &["--through", "--json"],
        &["--through", "2024-02-30"],
        &["--through=2101-01-01"],
        &["--through", "2024-01-01", "--through", "2024-01-01"],
        &["--db", "other.db"],
        &["--json=yes"],
        &["--jso"],
        &["--refund"],
        &["--refund", "p1", "--refund", "p1"],
        &["--refund", "p1", "--through", "2024-01-01"],
        &["--refund", "p1", "--amount", "1.5"],
        &["--refund", "p1", "--amount"],
        &["--amount", "5"],
    ];
    for args in wrong {
        let output = desk.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("usage: card_statements"), "{args:?}");
        assert!(output.stdout.is_empty() && !desk.db().exists());
    }
    assert!(desk.post(&["--help"]).contains("usage: card_statements"));
}
