//! Ranges of durations, each 2^(1/4) times as long as the one before: a quantile read from them is right within 10 %.

/// How many ranges there are between a duration and twice that.
const PER_DOUBLING: f64 = 4.0;

/// The range that a duration in milliseconds is in. 0 is below a millisecond; a clock set back counts as that.
pub(super) fn of(ms: i64) -> i64 {
    if ms < 1 {
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "at most 253")]
    let range = ((ms as f64).log2() * PER_DOUBLING).floor() as i64;
    range + 1
}

/// The middle of a range, in milliseconds: of the whole numbers that are in it, the geometric one.
pub(super) fn middle(bucket: i64) -> f64 {
    if bucket < 1 {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 253")]
    let edge = |at: i64| ((at as f64) / PER_DOUBLING).exp2();
    let (first, after) = (edge(bucket - 1).ceil(), edge(bucket));
    let last = (after.ceil() - 1.0).max(first);
    (first * last).sqrt()
}

/// The smallest duration that at least this part of all are not above. `ranges` is sorted.
pub(super) fn quantile(ranges: &[(i64, u64)], part: f64) -> Option<f64> {
    let sum: u64 = ranges.iter().map(|(_, n)| n).sum();
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a rank")]
    let rank = ((sum as f64 * part).ceil() as u64).max(1);
    let mut seen = 0;
    for &(bucket, n) in ranges {
        seen += n;
        if seen >= rank {
            return Some(middle(bucket));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_within_a_tenth_of_the_middle_of_its_range() {
        let mut ms = 1_i64;
        while ms < 4_000_000_000 {
            for ms in [ms - 1, ms, ms + 1] {
                let (real, told) = (ms as f64, middle(of(ms)));
                assert!((real - told).abs() <= 0.1 * real, "{ms} ms is told as {told}");
            }
            ms += 1 + ms / 7;
        }
        assert_eq!((of(0), of(-5), middle(0)), (0, 0, 0.0));
        assert!(of(i64::MAX) <= 253 && middle(of(i64::MAX)).is_finite());
    }

    #[test]
    fn longer_durations_are_never_in_lower_ranges() {
        assert!((0..100_000).is_sorted_by_key(of));
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_durations() {
        let mut durations: Vec<i64> = (0..2_000).map(|n| (n * 7_919) % 90_001 + 3).collect();
        let mut ranges = std::collections::BTreeMap::new();
        durations.iter().for_each(|&ms| *ranges.entry(of(ms)).or_insert(0) += 1);
        let ranges: Vec<_> = ranges.into_iter().collect();
        durations.sort_unstable();
        for (part, at) in [(0.5, 999), (0.95, 1_899), (0.99, 1_979), (0.0, 0), (1.0, 1_999)] {
            let (real, told) = (durations[at] as f64, quantile(&ranges, part).unwrap());
            assert!((real - told).abs() <= 0.1 * real, "p{part}: {real} is told as {told}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }
}
