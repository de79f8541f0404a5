//! The date for templates that ask for it, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The time now, as `format` wants it; see [`format`].
pub(crate) fn now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    self::format(seconds, format)
}

/// Python's `strftime` for a Unix time in seconds: the directives that name parts of date and time in English. What it
/// does not know is left as it stands.
pub(super) fn format(seconds: u64, format: &str) -> String {
    let date = Date::of(seconds);
    let mut text = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('-') => match chars.next() {
                Some(directive) => text.push_str(date.part(directive).trim_start_matches('0')),
                None => text.push_str("%-"),
            },
            Some(directive) => text.push_str(&date.part(directive)),
            None => text.push('%'),
        }
    }
    text
}

struct Date {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 0, Sunday.
    weekday: usize,
    /// From 1.
    yearday: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Date {
    fn of(seconds: u64) -> Self {
        let days = seconds / 86_400;
        let mut left = days;
        let mut year = 1970;
        let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        // A clock that is wrong by more than this is not worth the loop.
        while year < 10_000 && left >= 365 + u64::from(leap(year)) {
            left -= 365 + u64::from(leap(year));
            year += 1;
        }
        let yearday = left + 1;
        let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        for length in lengths {
            if left < length || month == 11 {
                break;
            }
            left -= length;
            month += 1;
        }
        // 1970-01-01 was a Thursday.
        let weekday = usize::try_from((days + 4) % 7).unwrap_or(0);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        Self { year, month, day: left + 1, weekday, yearday, hour, minute, second }
    }

    fn part(&self, directive: char) -> String {
        let month = MONTHS.get(self.month).copied().unwrap_or_default();
        let weekday = DAYS.get(self.weekday).copied().unwrap_or_default();
        let (year, day, hour, minute, second) = (self.year, self.day, self.hour, self.minute, self.second);
        let half_day = if hour % 12 == 0 { 12 } else { hour % 12 };
        match directive {
            'Y' => format!("{year}"),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{:02}", self.month + 1),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'j' => format!("{:03}", self.yearday),
            'B' => month.to_owned(),
            'b' | 'h' => month.chars().take(3).collect(),
            'A' => weekday.to_owned(),
            'a' => weekday.chars().take(3).collect(),
            'H' => format!("{hour:02}"),
            'I' => format!("{half_day:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'F' => format!("{year}-{:02}-{day:02}", self.month + 1),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            other => format!("%{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn parts_of_date_and_time() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_782_399, "%F %T", "2000-02-28 23:59:59"),
            (951_782_400, "%d %b %Y, %a", "29 Feb 2000, Tue"),
            (1_735_689_599, "%d %B %Y %I:%M %p %j", "31 December 2024 11:59 PM 366"),
            (1_767_225_600, "%-d/%-m/%y %Z%z %e %%", "1/1/26 UTC+0000  1 %"),
            (0, "%Q % %", "%Q % %"),
            (0, "%", "%"),
        ];
        for (seconds, wanted_format, wanted) in cases {
            assert_eq!(format(seconds, wanted_format), wanted, "{wanted_format}");
        }
        // No time is too far away for an answer.
        assert!(format(u64::MAX, "%F %T %A %j").starts_with("10000-12-"));
    }
}
