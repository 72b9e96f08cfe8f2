//! The command line `birkez next`, the real program against all vectors. What can go wrong: a text that does not reach the
//! parser as it was typed, an answer that differs from the library's, an error that spreads over lines or sends control
//! characters to a terminal, an exit code that a script cannot rely on, a panic because nobody reads.
#![cfg(feature = "cli")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use birkez::calendar::Calendar;
use serde_json::Value;

const VECTORS: &str = include_str!("vectors/cron_vectors.json");
const CLAMP_VECTORS: &str = include_str!("vectors/cron_clamp_vectors.json");
const EXPRESSIONS: &str = include_str!("vectors/cron_expressions.json");
/// How many programs run at a time.
const AT_A_TIME: usize = 4;

fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_birkez"));
    command.arg("next").args(arguments).env("TZ", "UTC").stdin(Stdio::null());
    command
}

/// What came of a call.
#[derive(Debug)]
struct Told {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Told {
    fn from(output: Output) -> Told {
        let text = |bytes| String::from_utf8(bytes).expect("what is printed is UTF-8");
        Told { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn next<S: AsRef<OsStr>>(arguments: &[S]) -> Told {
    command(arguments).output().unwrap().into()
}

fn printed(arguments: &[&str]) -> String {
    let told = next(arguments);
    assert_eq!((told.code, told.err.as_str()), (Some(0), ""), "{arguments:?}: {told:?}");
    told.out
}

#[track_caller]
fn assert_refused<S: AsRef<OsStr> + std::fmt::Debug>(arguments: &[S]) -> String {
    let told = next(arguments);
    assert_eq!((told.code, told.out.as_str()), (Some(2), ""), "{arguments:?}: {told:?}");
    let line = told.err.strip_suffix('\n').unwrap_or_else(|| panic!("{arguments:?}: {told:?}"));
    assert!(!line.is_empty() && line.len() < 400, "{arguments:?}: {line}");
    assert!(line.chars().all(|c| !c.is_control()), "{arguments:?}: {line:?}");
    line.to_owned()
}

/// Does something with every item, a few at a time.
fn for_each<T: Sync>(items: &[T], check: impl Fn(&T) + Sync) {
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(item) = items.get(taken.fetch_add(1, Ordering::Relaxed)) {
                    check(item);
                }
            });
        }
    });
    assert!(taken.into_inner() >= items.len());
}

fn list(json: &str) -> Vec<Value> {
    serde_json::from_str(json).unwrap()
}

fn expressions(which: &str) -> Vec<String> {
    let all: Value = serde_json::from_str(EXPRESSIONS).unwrap();
    all[which].as_array().unwrap().iter().map(|case| case["expr"].as_str().unwrap().to_owned()).collect()
}

/// Asks for a vector's occurrences and compares both names of each.
fn assert_vector(case: &Value, more: &[&str]) {
    let text = |field: &str| case[field].as_str().unwrap();
    let expected = |field: &str| case[field].as_array().cloned().unwrap_or_default();
    let instants = expected("next");
    assert!(!instants.is_empty(), "{case}");
    let count = instants.len().to_string();
    let asked =
        [text("expr"), "--zone", text("tz"), "--after", text("after"), "--count", &count, "--json"].map(str::to_owned);
    let told = next(&[asked.to_vec(), more.iter().map(ToString::to_string).collect()].concat());
    assert_eq!(told.code, Some(0), "{case}: {told:?}");
    assert!(told.err.lines().all(|line| line.starts_with("birkez next: warning: ")), "{case}: {told:?}");
    let lines: Vec<Value> = told.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let given = |field: &str| lines.iter().filter_map(|line| line.get(field).cloned()).collect::<Vec<_>>();
    assert_eq!(given("at"), instants, "{case}");
    // Interval jobs are instants and have no nominal time.
    match case["kind"].as_str() {
        Some("interval") => assert_eq!(given("nominal"), [Value::Null; 0], "{case}"),
        Some(_) => assert_eq!(given("nominal"), expected("nominal"), "{case}"),
        None => assert_eq!(given("nominal").len(), instants.len(), "{case}"),
    }
}

#[test]
fn every_vector_comes_out_of_the_program_with_its_nominal_times() {
    let cases = list(VECTORS);
    assert_eq!(cases.len(), 130);
    for_each(&cases, |case| assert_vector(case, &[]));
}

#[test]
fn every_vector_with_clamped_short_months_comes_out_of_the_program() {
    let cases = list(CLAMP_VECTORS);
    assert_eq!(cases.len(), 5);
    for_each(&cases, |case| {
        assert_eq!(case["short_months"], "last_day");
        assert_vector(case, &["--short-months", "last-day"]);
    });
}

#[test]
fn every_invalid_text_exits_2_with_one_line_and_prints_no_occurrence() {
    let invalid = expressions("invalid");
    assert!(invalid.len() >= 83);
    let in_library_only = AtomicUsize::new(0);
    for_each(&invalid, |text| {
        let error = Calendar::cron(text).unwrap_err().to_string();
        // No argument of a program can hold one.
        if text.contains('\0') {
            assert!(error.contains("\\u{0}") && !error.contains('\0'), "{error}");
            in_library_only.fetch_add(1, Ordering::Relaxed);
            return;
        }
        assert_eq!(assert_refused(&[text]), format!("birkez next: {error}"));
    });
    assert_eq!(in_library_only.into_inner(), 1);
}

#[test]
fn every_odd_but_valid_text_exits_0_with_occurrences() {
    let valid = expressions("valid_weird");
    assert_eq!(valid.len(), 19);
    for_each(&valid, |text| {
        let told = next(&[text]);
        assert_eq!((told.code, told.out.lines().count()), (Some(0), 5), "{text:?}: {told:?}");
        assert!(told.err.lines().all(|line| line.starts_with("birkez next: warning: ")), "{text:?}: {told:?}");
    });
}

#[test]
fn a_text_that_begins_with_a_dash_reaches_the_parser() {
    for text in ["-5 * * * *", "-h * * * *", "--5 * * * *", "--json * * * *", "--zone * * * *", "-- * * *", "-", "-5-7"]
    {
        let line = assert_refused(&[text]);
        assert!(line.starts_with(&format!("birkez next: calendar \"{text}\": ")), "{line}");
    }
    // Where a text is exactly an option, two dashes say that it is none.
    for text in ["--json", "-h", "--"] {
        assert!(assert_refused(&["--", text]).contains(&format!("calendar \"{text}\": ")), "{text}");
    }
    assert_eq!(next(&["--json", "--", "@daily"]).code, Some(0));
}

#[test]
fn an_error_names_the_field_and_shows_newlines_escaped() {
    for (text, line) in [
        ("61 3 * * *", r#"birkez next: calendar "61 3 * * *": minute: "61" is outside 0-59"#),
        ("0 3 30 2 *", r#"birkez next: calendar "0 3 30 2 *": day: no such day ever comes"#),
        ("0 3\n* * *", r#"birkez next: calendar "0 3\n* * *": character 4 is '\n', only printable ASCII is read"#),
        (
            "\u{1b}[2J 3 * * *",
            r#"birkez next: calendar "\u{1b}[2J 3 * * *": minute: character 1 is '\u{1b}', only printable ASCII is read"#,
        ),
    ] {
        assert_eq!(assert_refused(&[text]), line);
    }
    for hostile in ["x".repeat(100_000), "0 ".repeat(60_000), "\n\r\u{85}\u{2028}\u{202e}".repeat(9_000)] {
        assert_refused(&[hostile]);
    }
}

#[test]
fn a_zone_or_a_time_that_cannot_be_understood_exits_2_with_one_line() {
    for (option, value, shown) in [
        ("--zone", "Europe/Istambul", "\"Europe/Istambul\""),
        ("--zone", "", "\"\""),
        ("--zone", "+03:00", "\"+03:00\""),
        ("--zone", "FLE\nStandard Time", "FLE\\nStandard Time"),
        ("--after", "yesterday", "\"yesterday\""),
        ("--after", "2026-03-29", "\"2026-03-29\""),
        ("--after", "2026-03-29T02:30:00", "\"2026-03-29T02:30:00\""),
        ("--after", "2026-02-30T00:00:00Z", "\"2026-02-30T00:00:00Z\""),
        ("--after", "2026\u{1b}[31m\n", "\"2026\\u{1b}[31m\\n\""),
        ("--after", "", "\"\""),
    ] {
        let line = assert_refused(&["0 3 * * *", option, value]);
        assert!(line.starts_with("birkez next: ") && line.contains(shown), "{line}");
        assert!(option == "--zone" || line.contains("such as 2026-03-29T02:30:00+01:00"), "{line}");
    }
    assert_refused(&["0 3 * * *", "--zone", &"x".repeat(100_000)]);
    assert_refused(&["0 3 * * *", "--after", &"2026-".repeat(20_000)]);
}

#[test]
fn a_call_that_cannot_be_understood_exits_2_and_sends_no_control_character_to_the_terminal() {
    let calls: [&[&str]; 9] = [
        &[],
        &["--"],
        &["@daily", "--count", "-1"],
        &["@daily", "--count", "x\n\u{1b}[31m"],
        &["@daily", "--count", "1.5"],
        &["@daily", "--count", "99999999999999999999999999"],
        &["@daily", "--short-months", "first-day\r"],
        &["@daily", "0 3 * * *\u{7}"],
        &["@daily", "--year\u{9b}"],
    ];
    for call in calls {
        let told = next(call);
        assert_eq!((told.code, told.out.as_str()), (Some(2), ""), "{call:?}: {told:?}");
        assert!(told.err.starts_with("error: "), "{call:?}: {told:?}");
        assert_one_line(&told);
    }
    assert!(next(calls[3]).err.contains(r"'x\n\u{1b}[31m'"));
    // A text that is taken for an option, and where it goes.
    for call in [calls[0], calls[1], calls[8], &["--json"]] {
        assert!(next(call).err.contains("goes after --"), "{call:?}: {:?}", next(call));
    }
    let bare: Told = Command::new(env!("CARGO_BIN_EXE_birkez")).output().unwrap().into();
    assert_eq!(bare.code, Some(2));
    assert_one_line(&bare);
}

#[track_caller]
fn assert_one_line(told: &Told) {
    let line = told.err.strip_suffix('\n').unwrap_or_else(|| panic!("{told:?}"));
    assert!(!line.is_empty() && line.chars().all(|c| !c.is_control()), "{told:?}");
}

#[cfg(unix)]
#[test]
fn an_argument_that_is_no_utf_8_exits_2() {
    use std::os::unix::ffi::OsStrExt;
    for argument in [b"\xff * * * *".as_slice(), b"-\xff", b"\n\xc0"] {
        let told = next(&[OsStr::from_bytes(argument)]);
        assert_eq!((told.code, told.out.as_str()), (Some(2), ""), "{told:?}");
        assert!(told.err.contains("UTF-8"), "{told:?}");
        assert_one_line(&told);
    }
}

#[test]
fn plain_output_is_a_time_a_line_and_shows_what_daylight_saving_moved() {
    let berlin = |text, after, count| printed(&[text, "--zone", "Europe/Berlin", "--after", after, "--count", count]);
    assert_eq!(
        berlin("30 2 * * *", "2026-03-28T00:00:00+01:00", "3"),
        "2026-03-28T02:30:00+01:00\n\
         2026-03-29T03:00:00+02:00  (for 2026-03-29T02:30:00)\n\
         2026-03-30T02:30:00+02:00\n"
    );
    // A repeated hour: once for a wall job, both passes for an interval job.
    assert_eq!(
        berlin("30 2 * * *", "2026-10-24T23:00:00+02:00", "2"),
        "2026-10-25T02:30:00+02:00\n\
         2026-10-26T02:30:00+01:00\n"
    );
    assert_eq!(
        berlin("*/30 * * * *", "2026-10-25T01:30:00+02:00", "5"),
        "2026-10-25T02:00:00+02:00\n\
         2026-10-25T02:30:00+02:00\n\
         2026-10-25T02:00:00+01:00\n\
         2026-10-25T02:30:00+01:00\n\
         2026-10-25T03:00:00+01:00\n"
    );
}

#[test]
fn json_is_one_object_a_line_with_a_nominal_time_for_wall_jobs_only() {
    let after = ["--zone", "Europe/Berlin", "--after", "2026-03-28T12:00:00Z", "--count", "2", "--json"];
    let json = |text| printed(&[&[text], &after[..]].concat());
    assert_eq!(
        json("30 2 * * *"),
        "{\"at\":\"2026-03-29T03:00:00+02:00\",\"nominal\":\"2026-03-29T02:30:00\"}\n\
         {\"at\":\"2026-03-30T02:30:00+02:00\",\"nominal\":\"2026-03-30T02:30:00\"}\n"
    );
    assert_eq!(
        json("@hourly"),
        "{\"at\":\"2026-03-28T14:00:00+01:00\"}\n\
         {\"at\":\"2026-03-28T15:00:00+01:00\"}\n"
    );
}

#[test]
fn as_many_are_shown_as_were_asked_for_and_exist() {
    let count = |count| printed(&["0 3 * 2 0", "--zone", "UTC", "--count", count]).lines().count();
    assert_eq!([count("0"), count("1"), count("100")], [0, 1, 100]);
    let yearly = printed(&["@yearly", "--after", "2024-06-01T00:00:00Z", "--count", "18446744073709551615"]);
    assert_eq!(yearly.lines().count(), 76, "2025 to 2100");
    let told = next(&["@daily", "--after", "2100-12-31T23:59:59Z", "--zone", "UTC"]);
    assert_eq!((told.code, told.out.as_str()), (Some(0), ""), "{told:?}");
    assert!(told.err.contains("no occurrence is left") && told.err.lines().count() == 1, "{told:?}");
    assert_eq!(printed(&["@daily", "--after", "9999-12-31T23:59:59Z", "--count", "0"]), "");
    assert_eq!(printed(&["@daily", "--after", "0000-01-01T00:00:00Z", "--count", "1"]), "1970-01-01T00:00:00+00:00\n");
}

#[test]
fn without_options_it_shows_five_from_now_on_in_the_machines_zone() {
    let before = chrono::Utc::now();
    let told: Told = command(&["* * * * *"]).env("TZ", "EST5EDT,M3.2.0,M11.1.0").output().unwrap().into();
    let after = chrono::Utc::now();
    assert_eq!((told.code, told.err.as_str()), (Some(0), ""), "{told:?}");
    let shown: Vec<_> = told.out.lines().map(|line| chrono::DateTime::parse_from_rfc3339(line).unwrap()).collect();
    assert_eq!(shown.len(), 5);
    assert!(shown[0] > before && shown[0] <= after + chrono::TimeDelta::minutes(1), "{told:?}");
    assert!(shown.windows(2).all(|pair| pair[1] - pair[0] == chrono::TimeDelta::minutes(1)), "{told:?}");
    assert!(shown.iter().all(|at| [-4, -5].map(|hours| hours * 3600).contains(&at.offset().local_minus_utc())));
}

#[test]
fn likely_mistakes_are_warned_of_on_stderr_and_exit_0() {
    for (text, warning) in [
        ("0 0 31 * *", "day 31 is left out in Feb, Apr, Jun, Sep, Nov"),
        ("30 2 * * * *", "for 02:30 once a day leave one star away"),
        ("* * * * * *", "it fires every second"),
        ("0 0 13 * FRI", "match either of them"),
    ] {
        let told = next(&[text]);
        assert_eq!((told.code, told.out.lines().count()), (Some(0), 5), "{told:?}");
        let line = told.err.strip_suffix('\n').unwrap();
        assert!(line.starts_with("birkez next: warning: ") && line.contains(warning) && !line.contains('\n'), "{line}");
    }
    assert_eq!(next(&["0 0 31 * *", "--short-months", "last-day"]).err, "");
    assert_eq!(next(&["0 3 * * *"]).err, "");
}

#[cfg(unix)]
#[test]
fn a_machine_whose_zone_is_unknown_is_warned_of() {
    let told = |tz: &str| Told::from(command(&["@daily"]).env("TZ", tz).output().unwrap());
    for tz in ["No/Such", ":No/Such", "Nowhere"] {
        let told = told(tz);
        assert_eq!((told.code, told.out.lines().count()), (Some(0), 5), "{told:?}");
        assert!(told.err.contains("which is no zone on this machine"), "{told:?}");
        assert_one_line(&told);
    }
    for tz in ["", "UTC", "Europe/Istanbul", ":Turkey", "EST5EDT,M3.2.0,M11.1.0", "<+03>-3", "/etc/localtime"] {
        let known = tz.starts_with('/') && !std::path::Path::new(tz).exists();
        assert!(known || told(tz).err.is_empty(), "{tz}: {:?}", told(tz));
    }
}

#[test]
fn a_reader_that_has_had_enough_is_no_failure() {
    let mut child = command(&["* * * * * *", "--count", "10000000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"at\":"), "{line}");
    drop(reader);
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(
        (child.wait().unwrap().code(), errors.as_str()),
        (Some(0), "birkez next: warning: it fires every second\n")
    );
}

#[test]
fn nobody_reading_stderr_changes_no_exit_code() {
    for (text, code) in [("* * * * * *", 0), ("61 * * * *", 2)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&[text]).stderr(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure_and_said() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let told: Told = command(&["@daily"]).stdout(full).output().unwrap().into();
    assert_eq!(told.code, Some(1));
    assert!(told.err.starts_with("birkez next: writing the result: ") && told.err.lines().count() == 1, "{told:?}");
}
