//! What each path took when it was last written down, and how much more it may take.

use std::fmt::Write as _;

/// How much a count may differ, in hundredths. Counts repeat to less than one from run to run and from
/// build to build; a few more leave room for another C library. What costs less than this is not worth
/// a red build, and what costs more is no accident of inlining.
const TOLERANCE_PERCENT: u64 = 5;

/// Instructions a call of each path, by name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) architecture: String,
    pub(crate) rustc: String,
    pub(crate) instructions: Vec<(String, u64)>,
}

/// A record beside what was counted.
pub(crate) struct Compared {
    pub(crate) table: String,
    /// Why it fails.
    pub(crate) worse: Vec<String>,
    /// What else is worth knowing.
    pub(crate) notes: Vec<String>,
}

impl Record {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (mut architecture, mut rustc, mut instructions) = (None, None, Vec::new());
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with(['#', '['])) {
            let wrong = || format!("found `{line}` in the record, expected `name = value`");
            let (name, value) = line.split_once(" = ").ok_or_else(wrong)?;
            match name {
                "architecture" => architecture = Some(value.trim_matches('"').to_owned()),
                "rustc" => rustc = Some(value.trim_matches('"').to_owned()),
                _ => instructions.push((name.to_owned(), value.parse().map_err(|_| wrong())?)),
            }
        }
        let missing = |what: &str| format!("the record does not say its {what}");
        let architecture = architecture.ok_or_else(|| missing("architecture"))?;
        Ok(Self { architecture, rustc: rustc.ok_or_else(|| missing("rustc"))?, instructions })
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text =
            "# Instructions a call of each hot path takes. Compared by scripts/test, written by\n\
            # cargo run --profile counted -p tidegate-instructions -- --record\n"
                .to_owned();
        let (architecture, rustc) = (&self.architecture, &self.rustc);
        let _ = writeln!(text, "architecture = \"{architecture}\"\nrustc = \"{rustc}\"\n");
        let _ = writeln!(text, "[instructions]");
        for (name, count) in &self.instructions {
            let _ = writeln!(text, "{name} = {count}");
        }
        text
    }

    /// Compares what was counted with this record.
    pub(crate) fn compare(&self, counted: &Self) -> Compared {
        let mut table = format!("{:<32} {:>10} {:>10} {:>8}", "path", "recorded", "counted", "");
        let (mut worse, mut notes) = (Vec::new(), Vec::new());
        for (name, count) in &counted.instructions {
            let Some(recorded) = self.of(name) else {
                worse.push(format!("{name} is not in the record"));
                continue;
            };
            let percent = 100.0 * (*count as f64 / recorded.max(1) as f64 - 1.0);
            let _ = write!(table, "\n{name:<32} {recorded:>10} {count:>10} {percent:>+7.1}%");
            if count * 100 > recorded * (100 + TOLERANCE_PERCENT) {
                worse.push(format!("{name} takes {percent:.1} % more instructions than recorded"));
            } else if count * 100 < recorded * (100 - TOLERANCE_PERCENT) {
                notes.push(format!("{name} is better than the record: write it anew"));
            }
        }
        for (name, _) in &self.instructions {
            if counted.of(name).is_none() {
                worse.push(format!("{name} is in the record, but no path has this name"));
            }
        }
        Compared { table, worse, notes }
    }

    fn of(&self, name: &str) -> Option<u64> {
        self.instructions.iter().find(|(known, _)| known == name).map(|(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(instructions: &[(&str, u64)]) -> Record {
        let instructions = instructions.iter().map(|(name, count)| ((*name).to_owned(), *count));
        Record {
            architecture: "x86_64".to_owned(),
            rustc: "1.95.0".to_owned(),
            instructions: instructions.collect(),
        }
    }

    #[test]
    fn displayed_values_parse_again() {
        let written = record(&[("decision-allowed", 9_000), ("ban", 700)]);
        assert_eq!(Record::parse(&written.to_text()), Ok(written));
        assert!(Record::parse("architecture = \"x\"\n").is_err());
        assert!(Record::parse("a = b\n").is_err());
    }

    #[test]
    fn more_than_the_tolerance_fails_and_less_is_said() {
        let compared = |count| record(&[("a", 1_000)]).compare(&record(&[("a", count)]));
        assert!(compared(1_050).worse.is_empty() && compared(1_050).notes.is_empty());
        assert_eq!(compared(1_051).worse, ["a takes 5.1 % more instructions than recorded"]);
        assert!(compared(950).notes.is_empty());
        assert_eq!(compared(949).notes, ["a is better than the record: write it anew"]);
    }

    #[test]
    fn a_path_without_a_record_and_a_record_without_a_path_fail() {
        let compared = record(&[("a", 1)]).compare(&record(&[("b", 1)]));
        let expected = ["b is not in the record", "a is in the record, but no path has this name"];
        assert_eq!(compared.worse, expected);
    }
}
