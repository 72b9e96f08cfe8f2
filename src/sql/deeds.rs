//! The record of what people did.

pub(crate) const RECORD_DEED: &str = "
INSERT INTO main.birkez_event (at, who, verb, subject, why, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

pub(crate) const RECORD_TOUCHED: &str = "
INSERT INTO main.birkez_event_job (event, job_id, state, class, text, attempts)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

pub(crate) const DEEDS: &str = "
SELECT id, at, who, verb, subject, why, detail, (SELECT count(*) FROM main.birkez_event_job WHERE event = event.id)
FROM main.birkez_event AS event WHERE id < ?1 ORDER BY id DESC LIMIT ?2";

pub(crate) const DEEDS_OF_JOB: &str = "
SELECT event.id, event.at, event.who, event.verb, event.subject, event.why, event.detail,
       (SELECT count(*) FROM main.birkez_event_job WHERE event = event.id),
       touched.state, touched.class, touched.text, touched.attempts
FROM main.birkez_event_job AS touched JOIN main.birkez_event AS event ON event.id = touched.event
WHERE touched.job_id = ?1 ORDER BY event.id";
