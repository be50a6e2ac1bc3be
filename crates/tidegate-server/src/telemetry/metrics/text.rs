//! The Prometheus text format, version 0.0.4.
//!
//! Written by hand: a client library would look a series up by its label strings for each decision,
//! or leave the same arrays to us and write only this page.

use std::fmt::{self, Display, Write};

/// The media type of a page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a family of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A page in the making.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    /// Writes a family with the samples that `write` adds; nothing if `write` omits it.
    pub(super) fn family(
        &mut self,
        (name, kind, help): (&'static str, Kind, &str),
        write: impl FnOnce(&mut Samples<'_>),
    ) {
        let start = self.0.len();
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = Escaped { text: help, quotes: false };
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        let mut samples = Samples { page: self, name, is_omitted: false };
        write(&mut samples);
        if samples.is_omitted {
            self.0.truncate(start);
        }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }

    fn write(&mut self, arguments: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.0.write_fmt(arguments);
    }
}

/// The samples of one family.
pub(super) struct Samples<'p> {
    page: &'p mut Page,
    name: &'static str,
    is_omitted: bool,
}

impl Samples<'_> {
    /// The only sample, without labels.
    pub(super) fn value(&mut self, value: impl Display) {
        self.labelled(&[], value);
    }

    /// The only sample; without a value the family is omitted.
    pub(super) fn optional(&mut self, value: Option<impl Display>) {
        match value {
            Some(value) => self.value(value),
            None => self.omit(),
        }
    }

    /// A sample with labels.
    pub(super) fn labelled(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.suffixed("", labels, value);
    }

    /// A sample for each value of one label.
    pub(super) fn each(
        &mut self,
        label: &str,
        samples: impl IntoIterator<Item = (impl AsRef<str>, impl Display)>,
    ) {
        for (text, value) in samples {
            self.labelled(&[(label, text.as_ref())], value);
        }
    }

    /// A sample of a series that belongs to the family, such as the buckets of a histogram.
    pub(super) fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.page.write(format_args!("{}{suffix}", self.name));
        for (index, (label, text)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let text = Escaped { text, quotes: true };
            self.page.write(format_args!("{open}{label}=\"{text}\""));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        self.page.write(format_args!("{close} {value}\n"));
    }

    /// Leaves the family out of the page.
    pub(super) const fn omit(&mut self) {
        self.is_omitted = true;
    }
}

/// A whole, in millionths.
pub(super) const WHOLE: u64 = 1_000_000;

/// Millionths as a decimal: microseconds as seconds, or a share.
pub(super) struct Millionths(pub(super) u64);

impl Display for Millionths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, places) = (self.0 / WHOLE, self.0 % WHOLE);
        if places == 0 {
            return write!(f, "{whole}");
        }
        let places = format!("{places:06}");
        write!(f, "{whole}.{}", places.trim_end_matches('0'))
    }
}

/// Text that cannot end its line or its quotes.
struct Escaped<'t> {
    text: &'t str,
    quotes: bool,
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.text.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '"' if self.quotes => f.write_str("\\\"")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_help_cannot_break_out() {
        let mut page = Page::default();
        page.family(("a", Kind::Gauge, "one\\two\n\"three\""), |samples| {
            samples.labelled(&[("l", "x\"} 9\n\\"), ("m", "")], 1);
        });
        page.family(("b", Kind::Gauge, ""), |samples| samples.optional(None::<u8>));
        let expected = "# HELP a one\\\\two\\n\"three\"\n# TYPE a gauge\n\
                        a{l=\"x\\\"} 9\\n\\\\\",m=\"\"} 1\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn millionths_read_as_the_shortest_decimal() {
        let shown = [0, 10, 2_500, 1_000_000, 1_500_000].map(|us| Millionths(us).to_string());
        assert_eq!(shown, ["0", "0.00001", "0.0025", "1", "1.5"]);
    }
}
