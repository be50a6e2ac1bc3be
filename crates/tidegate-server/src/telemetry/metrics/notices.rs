//! What the page shows of messages to webhooks.

use super::text::{Kind, Page};
use crate::notify::NoticeCounts;

pub(super) fn write(page: &mut Page, notices: &NoticeCounts) {
    let name = "tidegate_notices_total";
    let help = "Messages to webhooks by how they ended: delivered, failed (no attempt succeeded, or \
                the webhook does not want it), refused (it leads where no webhook may be), dropped \
                (too many waited).";
    page.family(name, Kind::Counter, help);
    for (result, count) in [
        ("delivered", notices.delivered),
        ("failed", notices.failed),
        ("refused", notices.refused),
        ("dropped", notices.dropped),
    ] {
        page.sample(name, &[("result", result)], count);
    }
    let help = "Attempts to tell a webhook that failed and were tried again.";
    page.single("tidegate_notice_retries_total", Kind::Counter, help, notices.retries);
    let help = "Messages to webhooks that are on the way.";
    page.single("tidegate_notices_waiting", Kind::Gauge, help, notices.waiting);
}
