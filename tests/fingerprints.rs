//! When two contents under one key are the same. What can go wrong: another spelling of the same content, a field that a
//! newer program added, or a payload that was retired turns an old key into a reused one; or a real difference is not
//! seen. Each pair of types here stands for two programs, or two versions of one, on the same file.

mod common;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use birkez::testing::{Drain, TempStore};
use birkez::{Class, Context, Job, Runner, Standing, State, Store};
use common::{ask, rows, run_sql, wait_until};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A job type with what differs between the versions of a program.
macro_rules! job {
    ($name:ident { $($(#[$serde:meta])* $field:ident: $type:ty),* } $kind:literal $($more:item)*) => {
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        struct $name { $($(#[$serde])* $field: $type),* }
        impl Job for $name {
            const KIND: &'static str = $kind;
            type Output = i64;
            fn key(&self) -> String { self.id.clone() }
            $($more)*
        }
    };
}

job!(Payment { id: String, minor: i64, tags: HashMap<String, Option<f64>>, note: Option<String> } "payment");

fn payment(id: &str) -> Payment {
    let tags = ["b", "a", "ç", "z", "c"].map(|tag| (tag.to_owned(), Some(0.5)));
    Payment { id: id.into(), minor: 150, tags: tags.into(), note: Some("Açıklama \"1\"\n".into()) }
}

/// A script in another language inserts kind, key and payload, and nothing else. False where there is no Python.
fn insert_by_python(database: &Path, kind: &str, key: &str, payload: &str) -> bool {
    let script = "import sqlite3, sys\n\
                  db = sqlite3.connect(sys.argv[1], timeout=10)\n\
                  with db:\n\
                  \x20   db.execute('INSERT INTO birkez_job (kind, key, payload) VALUES (?, ?, ?)'\n\
                  \x20              ' ON CONFLICT DO NOTHING', sys.argv[2:])\n\
                  db.close()\n";
    let python = Command::new("python3").args(["-c", script]).arg(database).args([kind, key, payload]).output();
    let Ok(python) = python else {
        eprintln!("skipped: there is no python3");
        return false;
    };
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    true
}

#[test]
fn the_same_content_in_another_spelling_is_the_same() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let spellings = [
        r#"{"minor":150,"id":"ID","note":"Açıklama \"1\"\n","tags":{"z":0.5,"a":0.5,"b":0.5,"c":0.5,"ç":0.5}}"#,
        "{ \"note\" : \"A\\u00e7\\u0131klama \\u00221\\\"\\u000a\",\r\n\t\"tags\":{\"c\":5e-1,\"\\u00e7\":0.50,\"b\":0.5,\"a\":0.5,\
         \"z\":0.5},\"minor\":150,\"id\":\"ID\"}",
    ];
    for (at, spelling) in spellings.iter().enumerate() {
        let id = format!("spelling-{at}");
        run_sql(
            store.path(),
            &format!(
                "INSERT INTO birkez_job (kind, key, payload) VALUES ('payment', '{id}', '{}')",
                spelling.replace("ID", &id)
            ),
        );
        // Python's own spelling is covered beside; here it is bytes instead of a text too.
        run_sql(
            store.path(),
            &format!("UPDATE birkez_job SET payload = CAST(payload AS BLOB) WHERE key = '{id}' AND {at}"),
        );
        for _ in 0..3 {
            let met = store.enqueue(&payment(&id)).unwrap();
            assert!(!met.fresh && met.compared, "{spelling}");
        }
        let other = Payment { minor: 151, ..payment(&id) };
        assert_eq!(store.enqueue(&other).unwrap_err().code(), "KEY_REUSED");
    }
}

#[test]
fn the_order_of_a_map_in_memory_plays_no_part() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = store.enqueue(&payment("a")).unwrap().id;
    // Each map has its own random order.
    for _ in 0..50 {
        let met = store.enqueue(&payment("a")).unwrap();
        assert_eq!((met.id, met.fresh, met.compared), (id, false, true));
    }
}

#[test]
fn what_a_script_inserted_runs_and_is_known_by_its_content() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let python = |key: &str| {
        let payload = json!({"note": null, "tags": {"b": 2, "a": 1.0}, "minor": 7, "id": key});
        insert_by_python(store.path(), "payment", key, &format!(" {payload:#} "))
    };
    let tags = [("a".to_owned(), Some(1.0)), ("b".to_owned(), Some(2.0))];
    let same = |key: &str| Payment { id: key.into(), minor: 7, tags: tags.clone().into(), note: None };
    let handler = |job: Payment, _cx: &Context| Ok(job.minor * 3);
    if !python("before") || !python("before") {
        return;
    }
    assert!(!store.enqueue(&same("before")).unwrap().fresh);
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    python("while");
    for key in ["before", "while"] {
        wait_until("the script's job is done", || store.find("payment", key).unwrap().unwrap().state == State::Done);
        let met = store.enqueue(&same(key)).unwrap();
        assert!(matches!(met.standing, Standing::Done(Ok(21))) && met.compared, "{met:?}");
        let job = store.job(met.id).unwrap().unwrap();
        assert!(
            job.created_at.is_some() && job.run_at.timestamp() > 1_600_000_000,
            "what it left out is filled in: {job:?}"
        );
        assert_eq!(store.enqueue(&Payment { minor: 8, ..same(key) }).unwrap_err().code(), "KEY_REUSED");
    }
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_eq!(ask::<i64>(store.path(), "SELECT count(*) FROM birkez_job"), 2, "its own repeat was harmless");
}

#[test]
fn the_file_itself_refuses_what_a_script_must_not_insert() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let script = birkez::rusqlite::Connection::open(store.path()).unwrap();
    let long = format!("'{}'", "k".repeat(513));
    for (kind, key, payload) in [
        ("''", "'a'", "'{}'"),
        ("'mail'", "''", "'{}'"),
        ("'mail'", &long, "'{}'"),
        ("'mail'", "'a' || char(0) || 'b'", "'{}'"),
        ("'mail'", "17.5", "'{}'"),
        ("'mail'", "x'61'", "'{}'"),
        ("NULL", "'a'", "'{}'"),
        ("'mail'", "NULL", "'{}'"),
    ] {
        // A number becomes a text in a column of that affinity; every other type is refused.
        let insert = format!("INSERT INTO birkez_job (kind, key, payload) VALUES ({kind}, {key}, {payload})");
        let inserted = script.execute(&insert, []);
        assert!(inserted.is_err() || key == "17.5", "{insert}");
    }
    assert_eq!(rows(store.path(), "SELECT key, typeof(key) FROM birkez_job"), [r#"[Text("17.5"), Text("text")]"#]);
    for column in ["run_at = 'tomorrow'", "priority = 'high'", "state = 9", "gate = 9", "state = 2", "attempts = -1"] {
        assert!(script.execute(&format!("UPDATE birkez_job SET {column}"), []).is_err(), "{column}");
    }
}

job!(Webhook { id: String, body: String, delivered_at: i64 } "webhook"
    fn fingerprint(&self) -> Option<Value> {
        Some(json!({"body": self.body}))
    }
);

#[test]
fn what_a_sender_may_change_between_deliveries_is_left_out() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let delivery = |at: i64, body: &str| Webhook { id: "evt_1".into(), body: body.into(), delivered_at: at };
    let first = store.enqueue(&delivery(1, "paid")).unwrap();
    for at in 2..5 {
        let met = store.enqueue(&delivery(at, "paid")).unwrap();
        assert_eq!((met.id, met.fresh, met.compared), (first.id, false, true));
    }
    assert_eq!(store.enqueue(&delivery(1, "refunded")).unwrap_err().code(), "KEY_REUSED");
    let drain = Drain::new(Runner::builder(&store).handle(|job: Webhook, _cx: &Context| Ok(job.delivered_at)));
    drain.unwrap().drain().unwrap();
    assert_eq!(
        store.once(&delivery(9, "paid"), |_cx| unreachable!("it is done")).unwrap(),
        1,
        "the first delivery ran"
    );
    // A script's delivery is compared by the same part of its content.
    run_sql(
        store.path(),
        r#"INSERT INTO birkez_job (kind, key, payload)
        VALUES ('webhook', 'evt_2', '{"id":"evt_2","delivered_at":77,"body":"paid"}')"#,
    );
    let met = store.enqueue(&Webhook { id: "evt_2".into(), body: "paid".into(), delivered_at: 78 }).unwrap();
    assert!(!met.fresh && met.compared);
}

// Version 1 keeps lira, version 2 kuruş under another name.
job!(ClearingV1 { id: String, lira: f64 } "clearing");
job!(ClearingV2 { id: String, kurus: i64 } "clearing"
    const SHAPE: u32 = 2;
    fn upgrade(shape: u32, payload: Value) -> anyhow::Result<Value> {
        let lira = payload["lira"].as_f64().filter(|_| shape == 1);
        let lira = lira.ok_or_else(|| anyhow::anyhow!("shape {shape} without lira"))?;
        Ok(json!({"id": payload["id"], "kurus": (lira * 100.0).round() as i64}))
    }
);

fn v1(id: &str, lira: f64) -> ClearingV1 {
    ClearingV1 { id: id.into(), lira }
}

fn v2(id: &str, kurus: i64) -> ClearingV2 {
    ClearingV2 { id: id.into(), kurus }
}

#[test]
fn a_payload_of_an_older_shape_is_upgraded_and_then_compared_and_run() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = store.enqueue(&v1("a", 12.5)).unwrap().id;
    let met = store.enqueue(&v2("a", 1250)).unwrap();
    assert_eq!((met.id, met.fresh, met.compared), (id, false, true));
    assert_eq!(store.enqueue(&v2("a", 1251)).unwrap_err().code(), "KEY_REUSED");
    let drain = Drain::new(Runner::builder(&store).handle(|job: ClearingV2, _cx: &Context| Ok(job.kurus))).unwrap();
    assert_eq!(drain.drain().unwrap(), 1);
    assert!(matches!(store.enqueue(&v2("a", 1250)).unwrap().standing, Standing::Done(Ok(1250))));
    // The older program still knows its own.
    assert!(store.enqueue(&v1("a", 12.5)).unwrap().compared);
    assert_eq!(store.enqueue(&v1("a", 12.51)).unwrap_err().code(), "KEY_REUSED");
}

#[test]
fn a_payload_of_a_newer_shape_is_not_compared_by_an_older_program() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = store.enqueue(&v2("a", 1250)).unwrap().id;
    let before = rows(store.path(), "SELECT * FROM birkez_job");
    for lira in [12.5, 99.0] {
        let met = store.enqueue(&v1("a", lira)).unwrap();
        assert_eq!((met.id, met.fresh, met.compared), (id, false, false));
        let met = store.enqueue_all([&v1("a", lira)]).unwrap();
        assert_eq!((met[0].id, met[0].compared), (id, false));
    }
    assert_eq!(rows(store.path(), "SELECT * FROM birkez_job"), before);
}

#[test]
fn a_payload_that_cannot_be_upgraded_is_not_compared_and_dies_with_its_payload_kept() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(store.path(), r#"INSERT INTO birkez_job (kind, key, payload) VALUES ('clearing', 'a', '{"id":"a"}')"#);
    let met = store.enqueue(&v2("a", 1)).unwrap();
    assert!(!met.fresh && !met.compared);
    let drain = Drain::new(Runner::builder(&store).handle(|_: ClearingV2, _cx: &Context| Ok(1))).unwrap();
    drain.drain().unwrap();
    let Standing::Dead(failure) = store.enqueue(&v2("a", 1)).unwrap().standing else { panic!("it is dead") };
    assert_eq!(failure.class, Class::Undecodable);
    assert!(failure.text.contains("shape 1 without lira"), "{}", failure.text);
    assert_eq!(ask::<String>(store.path(), "SELECT payload FROM birkez_job"), r#"{"id":"a"}"#);
}

// A newer program adds a field that old payloads need not have, without a new shape.
job!(AlertV1 { id: String, limit: i64 } "alert");
job!(AlertV2 { id: String, limit: i64, #[serde(default)] channel: Option<String> } "alert");

#[test]
fn a_field_that_a_newer_program_added_turns_no_old_key_into_a_reused_one() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let old = |id: &str, limit| AlertV1 { id: id.into(), limit };
    let new =
        |id: &str, channel: Option<&str>| AlertV2 { id: id.into(), limit: 5, channel: channel.map(str::to_owned) };
    let id = store.enqueue(&old("old", 5)).unwrap().id;
    for _ in 0..2 {
        let met = store.enqueue(&new("old", None)).unwrap();
        assert_eq!((met.id, met.fresh, met.compared), (id, false, true));
        assert!(store.enqueue(&old("old", 5)).unwrap().compared, "both versions go on knowing it");
    }
    assert_eq!(store.enqueue(&new("old", Some("sms"))).unwrap_err().code(), "KEY_REUSED", "it says something new");
    assert_eq!(store.enqueue(&old("old", 6)).unwrap_err().code(), "KEY_REUSED");

    let id = store.enqueue(&new("new", None)).unwrap().id;
    let met = store.enqueue(&old("new", 5)).unwrap();
    assert_eq!((met.id, met.fresh, met.compared), (id, false, true));
}

fn retire(store: &Store) {
    run_sql(store.path(), "UPDATE birkez_job SET payload = NULL, result = NULL, result_note = 'retired'");
}

#[test]
fn a_retired_payload_still_tells_other_content_by_its_fingerprint() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = store.enqueue(&v2("a", 1250)).unwrap().id;
    retire(&store);
    let met = store.enqueue(&v2("a", 1250)).unwrap();
    assert_eq!((met.id, met.fresh, met.compared), (id, false, true));
    assert_eq!(store.enqueue(&v2("a", 1)).unwrap_err().code(), "KEY_REUSED");
    // Under another shape the fingerprint says nothing, and there is no payload to upgrade.
    for lira in [12.5, 99.0] {
        let met = store.enqueue(&v1("a", lira)).unwrap();
        assert_eq!((met.id, met.fresh, met.compared), (id, false, false));
    }
}

#[test]
fn a_payload_retired_before_any_comparison_is_not_compared() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(
        store.path(),
        r#"INSERT INTO birkez_job (kind, key, payload) VALUES ('clearing', 'a', '{"id":"a","lira":1.0}')"#,
    );
    let drain =
        Drain::new(Runner::builder(&store).handle(|job: ClearingV1, _cx: &Context| Ok(job.lira as i64))).unwrap();
    assert_eq!(drain.drain().unwrap(), 1);
    retire(&store);
    let met = store.enqueue(&v1("a", 1.0)).unwrap();
    assert!(!met.fresh && !met.compared);
    let Standing::Done(Err(gone)) = met.standing else { panic!("it is done: {met:?}") };
    assert_eq!(gone.code(), "RESULT_GONE");
}

#[test]
fn an_upgraded_payload_leaves_its_row_no_fingerprint_of_another_shape() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(
        store.path(),
        r#"INSERT INTO birkez_job (kind, key, payload) VALUES ('clearing', 'a', '{"id":"a","lira":1.0}')"#,
    );
    assert!(store.enqueue(&v2("a", 100)).unwrap().compared);
    retire(&store);
    // The row is of shape 1: whoever knows only that must not find another program's fingerprint there.
    let met = store.enqueue(&v1("a", 1.0)).unwrap();
    assert!(!met.fresh && !met.compared);
}

job!(OldMail { id: String, to: String } "send-mail");
job!(Mail { id: String, to: String } "mail"
    const FORMER_KINDS: &'static [&'static str] = &["post", "send-mail"];
);

#[test]
fn a_key_known_under_a_former_name_is_known_and_its_job_is_run() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let old = OldMail { id: "a".into(), to: "x@y.z".into() };
    let new = |id: &str, to: &str| Mail { id: id.into(), to: to.into() };
    let id = store.enqueue(&old).unwrap().id;
    let waiting = store.enqueue(&new("a", "x@y.z")).unwrap();
    assert_eq!((waiting.id, waiting.fresh, waiting.compared), (id, false, true));
    let refused = store.enqueue(&new("a", "other@y.z")).unwrap_err();
    assert_eq!((refused.code(), refused.job()), ("KEY_REUSED", Some(("mail", "a"))));
    let refused = store.once(&new("a", "x@y.z"), |_cx| unreachable!("it is a runner's")).unwrap_err();
    assert_eq!(refused.code(), "NOT_FOR_CALLERS");
    let both = store.enqueue_all([&new("a", "x@y.z"), &new("b", "x@y.z")]).unwrap();
    assert_eq!((both[0].id, both[0].fresh, both[1].fresh), (id, false, true));

    let handler = |mail: Mail, cx: &Context| Ok((mail.to.len() + cx.kind().len()) as i64);
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    wait_until("the job under the former name is done", || store.job(id).unwrap().unwrap().state == State::Done);
    runner.stop(Duration::from_secs(5)).unwrap();
    let met = store.enqueue(&new("a", "x@y.z")).unwrap();
    assert!(matches!(met.standing, Standing::Done(Ok(14))), "{met:?}");
    assert_eq!(store.once(&new("a", "x@y.z"), |_cx| unreachable!("it is done")).unwrap(), 14);
    assert_eq!(ask::<i64>(store.path(), "SELECT count(*) FROM birkez_job"), 2);
}

#[test]
fn a_key_that_once_left_behind_under_a_former_name_is_taken_up_by_once() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let old = OldMail { id: "a".into(), to: "x".into() };
    assert_eq!(store.once(&old, |_cx| anyhow::bail!("not today")).unwrap_err().code(), "FAILED");
    let new = Mail { id: "a".into(), to: "x".into() };
    assert_eq!(store.once(&new, |cx| Ok(i64::from(cx.attempt()))).unwrap(), 2);
    assert_eq!(store.once(&new, |_cx| unreachable!("it is done")).unwrap(), 2);
    assert_eq!(ask::<i64>(store.path(), "SELECT count(*) FROM birkez_job"), 1);
}
