//! Reads a cron line, strictly: what crontab users write and nothing that is probably a slip of the pen.
//!
//! The grammar: Unix day numbers, three-letter names, ranges, steps, lists, `L`, `?`, seven shorthands. The crate
//! `cron` numbers days otherwise and accepts far more (`******`, `*5 * * * *`), so it is never shown a user's text.

use super::error::{CalendarError, CalendarFault, Excerpt, LONGEST};
use super::field::{Field, Fields, Set, Values};

/// A line that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The line with single spaces; a shorthand in lower case.
    pub(super) text: String,
    pub(super) fields: Fields,
}

/// Reads 5 fields, 6 fields, or a shorthand.
pub(super) fn read(input: &str) -> Result<Line, CalendarError> {
    let refuse = |reason| CalendarError::new(input, None, reason);
    if input.len() > LONGEST {
        return Err(refuse(CalendarFault::TooLong { bytes: input.len() }));
    }
    let text = input.trim_matches([' ', '\t', '\r', '\n']);
    if text.is_empty() {
        return Err(refuse(CalendarFault::Empty));
    }
    if text.starts_with('@') {
        return shorthand(text).ok_or_else(|| refuse(CalendarFault::Shorthand));
    }
    let items: Vec<&str> = text.split([' ', '\t']).filter(|item| !item.is_empty()).collect();
    if let Some((at, found)) = text.chars().enumerate().find(|c| is_foreign(c.1)) {
        let place = items.iter().position(|item| item.contains(is_foreign));
        let field = place.and_then(|place| field_at(place, items.len()));
        return Err(CalendarError::new(input, field, CalendarFault::Character { found, at: at + 1 }));
    }
    let fields = fields(&items).map_err(|(field, reason)| CalendarError::new(input, field, reason))?;
    Ok(Line { text: items.join(" "), fields })
}

fn is_foreign(c: char) -> bool {
    !matches!(c, ' '..='~' | '\t')
}

/// The field at a place of a line with so many; `None` if no line has so many.
fn field_at(place: usize, count: usize) -> Option<Field> {
    match count {
        5 => Field::ALL.get(place + 1).copied(),
        6 => Field::ALL.get(place).copied(),
        _ => None,
    }
}

fn shorthand(text: &str) -> Option<Line> {
    let name = text.to_ascii_lowercase();
    let line: [&str; 5] = match name.as_str() {
        "@yearly" | "@annually" => ["0", "0", "1", "1", "*"],
        "@monthly" => ["0", "0", "1", "*", "*"],
        "@weekly" => ["0", "0", "*", "*", "0"],
        "@daily" | "@midnight" => ["0", "0", "*", "*", "*"],
        "@hourly" => ["0", "*", "*", "*", "*"],
        _ => return None,
    };
    Some(Line { fields: fields(&line).ok()?, text: name })
}

fn fields(items: &[&str]) -> Result<Fields, (Option<Field>, CalendarFault)> {
    let mut fields = Fields::daily(0, 0, 0);
    fields.six = items.len() == 6;
    for (place, item) in items.iter().enumerate() {
        let field = field_at(place, items.len()).ok_or((None, CalendarFault::FieldCount { found: items.len() }))?;
        *fields.of(field) = read_field(field, item).map_err(|reason| (Some(field), reason))?;
    }
    Ok(fields)
}

fn read_field(field: Field, text: &str) -> Result<Values, CalendarFault> {
    if text == "?" && matches!(field, Field::Day | Field::Weekday) {
        return Ok(Values::any(field));
    }
    if text.contains('?') {
        return Err(CalendarFault::QuestionMark);
    }
    let mut values = Values { set: Set::default(), star: text.starts_with('*'), last: false };
    for item in text.split(',') {
        if field == Field::Day && item.eq_ignore_ascii_case("l") {
            values.last = true;
        } else {
            values.set = values.set.with(read_item(field, item)?);
        }
    }
    Ok(values)
}

/// Reads `*`, `a` or `a-b`, each with or without `/n`.
fn read_item(field: Field, item: &str) -> Result<Set, CalendarFault> {
    if item.is_empty() {
        return Err(CalendarFault::MissingItem);
    }
    let (base, step) = match item.split_once('/') {
        Some((base, step)) => (base, Some(step)),
        None => (item, None),
    };
    if base.is_empty() {
        return Err(CalendarFault::NotAValue { item: Excerpt::new(item), expected: field.expected() });
    }
    let (from, to) = read_base(field, base, step.is_some())?;
    let step = step.map_or(Ok(1), |step| read_step(field, step))?;
    let set = Set::range(from, to, step);
    // Sunday, met as 7 at the end of a range, goes where Sunday is kept.
    let eighth = field == Field::Weekday && set.has(7);
    Ok(if eighth { Set::range(from, 6, step).with(Set::of(0)) } else { set })
}

fn read_base(field: Field, base: &str, stepped: bool) -> Result<(u8, u8), CalendarFault> {
    if base == "*" {
        return Ok((field.min(), field.last()));
    }
    let Some((from, to)) = base.split_once('-') else {
        let value = read_value(field, base)?;
        let sunday = field == Field::Weekday && value == 7;
        let from = if sunday { 0 } else { value };
        return Ok((from, if stepped { field.last() } else { from }));
    };
    if from.is_empty() || to.is_empty() {
        return Err(CalendarFault::NotAValue { item: Excerpt::new(base), expected: field.expected() });
    }
    let (from, mut to) = (read_value(field, from)?, read_value(field, to)?);
    if field == Field::Weekday && to == 0 && from > 0 {
        to = 7;
    }
    if from > to {
        return Err(CalendarFault::Backward { item: Excerpt::new(base), instead: forwards(field, base, from) });
    }
    Ok((from, to))
}

/// The two ranges that a range running over the end of its field was probably meant to be.
fn forwards(field: Field, base: &str, from: u8) -> String {
    let (first, end) = base.split_once('-').unwrap_or((base, base));
    let spell = |value: u8| match field.name_of(value) {
        Some(name) if first.starts_with(|c: char| c.is_ascii_alphabetic()) => name.to_ascii_uppercase(),
        _ => value.to_string(),
    };
    let lowest = spell(field.min());
    if from > field.last() {
        return format!("{lowest}-{end}");
    }
    format!("{first}-{},{lowest}-{end}", spell(field.last()))
}

fn read_value(field: Field, text: &str) -> Result<u8, CalendarFault> {
    if let Some(value) = field.named(text) {
        return Ok(value);
    }
    if text.eq_ignore_ascii_case("l") {
        return Err(CalendarFault::LastDay);
    }
    let item = || Excerpt::new(text);
    let number =
        read_number(text).ok_or_else(|| CalendarFault::NotAValue { item: item(), expected: field.expected() })?;
    if number < field.min() || number > field.max() {
        return Err(CalendarFault::OutOfRange { item: item(), min: field.min(), max: field.max() });
    }
    Ok(number)
}

fn read_step(field: Field, text: &str) -> Result<u8, CalendarFault> {
    read_number(text)
        .filter(|step| (1..=field.max()).contains(step))
        .ok_or_else(|| CalendarFault::Step { item: Excerpt::new(text), max: field.max() })
}

/// A number of ASCII digits only; one too great for any field is read as 255.
fn read_number(text: &str) -> Option<u8> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| byte - b'0');
    let append = |number: u8, byte| digit(byte).map(|digit| number.saturating_mul(10).saturating_add(digit));
    if text.is_empty() { None } else { text.bytes().try_fold(0, append) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weekdays(text: &str) -> Vec<u8> {
        let line = read(&format!("0 0 * * {text}")).unwrap();
        line.fields.weekday.set.iter().collect()
    }

    fn fault(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn sunday_is_0_and_7_and_may_end_a_range() {
        assert_eq!(weekdays("0"), [0]);
        assert_eq!(weekdays("7"), [0]);
        assert_eq!(weekdays("5-7"), [0, 5, 6]);
        assert_eq!(weekdays("SAT-SUN"), [0, 6]);
        assert_eq!(weekdays("5-0"), [0, 5, 6]);
        assert_eq!(weekdays("MON-SUN/2"), [0, 1, 3, 5]);
        assert_eq!(weekdays("0-7"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(weekdays("sun-sun"), [0]);
        assert_eq!(weekdays("7-7"), [0]);
        assert_eq!(weekdays("3/2"), [3, 5]);
    }

    #[test]
    fn the_text_is_kept_with_single_spaces_and_shorthands_in_lower_case() {
        assert_eq!(read(" 0\t0  1 JAN * \n").unwrap().text, "0 0 1 JAN *");
        assert_eq!(read("@Daily").unwrap().text, "@daily");
    }

    #[test]
    fn an_error_is_one_line_that_names_the_field_and_the_reason() {
        assert_eq!(fault("60 * * * *"), r#"calendar "60 * * * *": minute: "60" is outside 0-59"#);
        assert_eq!(
            fault("0 22-2 * * *"),
            r#"calendar "0 22-2 * * *": hour: the range "22-2" runs backwards; write 22-23,0-2"#
        );
        assert!(fault("0 0 * * fri-MON").ends_with("write fri-SAT,SUN-MON"));
        assert!(fault("0 0 * * 7-3").ends_with("write 0-3"));
        assert!(fault("0 0\n* * *").contains(r"'\n'"));
        assert!(!fault("0 0\n* * *").contains('\n'));
        assert!(fault("* * * * * * *").contains("has 7 fields"));
        assert!(fault("99999999999999999999 * * * *").contains("outside 0-59"));
    }

    #[test]
    fn an_error_about_a_megabyte_stays_short() {
        assert!(fault(&"9".repeat(1 << 20)).len() < 200);
        assert!(fault(&format!("{} * * * *", "x".repeat(400))).len() < 300);
    }
}
