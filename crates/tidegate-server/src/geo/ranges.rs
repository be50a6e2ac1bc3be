//! Ranges of addresses, and the country of each. They are made from the database once: to walk down its
//! tree and decode a record takes ten times as long as a search among ranges.

use tidegate::engine::CountryCode;

/// Countries by sorted ranges of addresses. A lookup is a binary search.
#[derive(Debug)]
pub(super) struct Ranges<T> {
    /// The first address of each range, which ends before the next range.
    starts: Vec<T>,
    countries: Vec<Option<CountryCode>>,
}

/// The first and the last address of a network, and its country.
pub(super) type Range<T> = (T, T, Option<CountryCode>);

impl<T: Copy + Ord> Ranges<T> {
    /// The ranges of networks that do not overlap; `following` is the next address.
    pub(super) fn new(mut networks: Vec<Range<T>>, following: impl Fn(T) -> Option<T>) -> Self {
        networks.sort_unstable_by_key(|(first, ..)| *first);
        let mut ranges = Self { starts: Vec::new(), countries: Vec::new() };
        let mut behind = None;
        for (first, last, country) in networks {
            if let Some(gap) = behind.filter(|behind| *behind < first) {
                ranges.begin(gap, None);
            }
            ranges.begin(first, country);
            behind = following(last);
        }
        if let Some(rest) = behind {
            ranges.begin(rest, None);
        }
        ranges
    }

    fn begin(&mut self, start: T, country: Option<CountryCode>) {
        // Neighbours in the same country are one range.
        if self.countries.last() != Some(&country) {
            self.starts.push(start);
            self.countries.push(country);
        }
    }

    pub(super) fn country(&self, address: T) -> Option<CountryCode> {
        let behind = self.starts.partition_point(|start| *start <= address);
        *self.countries.get(behind.checked_sub(1)?)?
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// True if any address is in a country.
    pub(super) fn knows_any(&self) -> bool {
        self.countries.iter().any(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Option<CountryCode> {
        CountryCode::new(text)
    }

    #[test]
    fn every_address_is_in_the_country_of_its_range_and_gaps_are_in_none() {
        let networks = vec![
            (250, 255, code("FR")),
            (10, 19, code("DE")),
            (20, 29, code("DE")),
            (40, 49, code("AT")),
        ];
        let ranges: Ranges<u8> = Ranges::new(networks.clone(), |last: u8| last.checked_add(1));
        for address in 0..=u8::MAX {
            let within = |(first, last, _): &&Range<u8>| (*first..=*last).contains(&address);
            let expected = networks.iter().find(within).and_then(|(.., country)| *country);
            assert_eq!(ranges.country(address), expected, "{address}");
        }
        assert_eq!(ranges.len(), 5, "neighbours are one");
    }
}
