//! `POST /v1/release`, `/v1/renew` and `/v1/settle`: what becomes of a reservation, by its lease.

use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use tidegate::StoreError;
use tidegate::{Consequences, Reservation, Settlement};
use tokio::sync::OwnedMutexGuard;

use crate::app::App;
use crate::body::Body;
use crate::leases::{Lease, LeaseId, ReservedRequest};
use crate::respond;
use crate::seal::SealedReservation;
use crate::wire::api::report::ConsequencesView;
use crate::wire::endpoint::{Answer, ErrorResponse};
use crate::wire::fields::{FieldError, Object, amount, text, whole};
use crate::wire::json::json_response;

/// Gives the reservation's places back.
pub(in crate::wire) async fn release(app: &App, body: &[u8]) -> Answer {
    let mut open = OpenReservation::parse(app, body).await?;
    let released = app.engine.release_async(open.reservation()).await;
    // A charge by status or cost may still be settled.
    open.close(app);
    let undone = "a place is not given back; it frees itself";
    Ok(respond("released", conclude(app, released, undone, false)))
}

/// Keeps the reservation's places for another while.
pub(in crate::wire) async fn renew(app: &App, body: &[u8]) -> Answer {
    let mut open = OpenReservation::parse(app, body).await?;
    let renewed = app.engine.renew_async(open.reservation()).await;
    open.close(app);
    // While the store is lost nobody else gets the place, so its holder may go on.
    let undone = "a place is not renewed; its holder may try again";
    Ok(respond("renewed", conclude(app, renewed, undone, true)))
}

/// Settles the true cost, or the status of the answer, of a request.
pub(in crate::wire) async fn settle(app: &App, body: &[u8]) -> Answer {
    let mut fields = Object::parse(body)?;
    let (cost, status) = (fields.take("cost", amount)?, fields.take("status", http_status)?);
    let lease = take_lease(app, &mut fields, "lease, cost, status")?;
    let settlement = match (cost, status) {
        (Some(cost), Some(status)) => Settlement::CostAndStatus(cost, status),
        (Some(cost), None) => Settlement::Cost(cost),
        (None, Some(status)) => Settlement::Status(status),
        (None, None) => {
            let detail = "is missing: expected `cost` or `status`";
            return Err(FieldError::new("cost", detail).into());
        }
    };
    let mut open = OpenReservation::open(app, lease).await?;
    let mut consequences = Consequences::default();
    let settled = match open.may_settle(app).await {
        Ok(true) => {
            let settled = app.engine.settle_async(open.reservation(), settlement).await;
            if let Some((status, request)) = status.zip(open.take_request(app)) {
                consequences = app.record_status(&request.request(app), status).await;
            }
            open.close(app);
            settled.map(|()| true)
        }
        Ok(false) => return Err(unknown_lease()),
        Err(error) => {
            app.metrics.store_failed(&error);
            if open.settle_later(app, settlement) { Ok(true) } else { Err(error) }
        }
    };
    let undone = "a lease is not settled; it stays charged";
    let (settled, degraded) = conclude(app, settled, undone, false);
    if consequences.events.is_empty() {
        return Ok(respond("settled", (settled, degraded)));
    }
    let mut view = ConsequencesView::of(&consequences);
    view.degraded |= degraded;
    Ok(json_response(&SettledEvent { settled, consequences: view }))
}

/// The answer to a settlement whose status made an event.
#[derive(Serialize)]
struct SettledEvent<'r> {
    settled: bool,
    #[serde(flatten)]
    consequences: ConsequencesView<'r>,
}

/// A reservation while a call changes it.
enum OpenReservation {
    /// Locked in this node's table.
    Local(LeaseId, OwnedMutexGuard<Reservation>),
    /// Unsealed from its lease; other nodes may change it too.
    Sealed(Box<SealedReservation>),
}

impl OpenReservation {
    /// Opens the reservation of a body that has `lease` alone.
    async fn parse(app: &App, body: &[u8]) -> Result<Self, ErrorResponse> {
        let lease = take_lease(app, &mut Object::parse(body)?, "lease")?;
        Self::open(app, lease).await
    }

    async fn open(app: &App, lease: Lease) -> Result<Self, ErrorResponse> {
        match lease {
            Lease::Local(id) => {
                let reservation = app.leases.open(id, app.now().steady_us).await;
                Ok(Self::Local(id, reservation.ok_or_else(unknown_lease)?))
            }
            Lease::Sealed(sealed) => sealed.map(Self::Sealed).ok_or_else(unknown_lease),
        }
    }

    fn reservation(&mut self) -> &mut Reservation {
        match self {
            Self::Local(_, reservation) => reservation,
            Self::Sealed(sealed) => &mut sealed.reservation,
        }
    }

    /// False for a sealed reservation that some node has settled, or that is void.
    async fn may_settle(&self, app: &App) -> Result<bool, StoreError> {
        match self {
            Self::Local(..) => Ok(true),
            Self::Sealed(sealed) => app.may_settle(sealed).await,
        }
    }

    /// Queues the settlement until the store is back; false if the queue is full.
    fn settle_later(self, app: &App, settlement: Settlement) -> bool {
        match (self, app.engine.store().shared()) {
            (Self::Sealed(sealed), Some(store)) => store.settle_later(sealed, settlement),
            _ => false,
        }
    }

    /// The request of the check, if its status may make an event.
    fn take_request(&mut self, app: &App) -> Option<Box<ReservedRequest>> {
        match self {
            Self::Local(id, _) => app.leases.take_request(*id),
            Self::Sealed(sealed) => sealed.request.take(),
        }
    }

    fn close(self, app: &App) {
        if let Self::Local(id, reservation) = self {
            app.leases.close(id, &reservation, app.now().steady_us);
        }
    }
}

fn unknown_lease() -> ErrorResponse {
    let detail =
        "this lease is not known: it was never given, or nothing of it may change any more";
    respond::problem(StatusCode::NOT_FOUND, detail).into()
}

/// Whether it is done, and whether the store is lost. A lost store is no error of the caller: the daemon
/// does later what it can, and logs and counts the rest as `undone`; the answer is then `otherwise`.
fn conclude(
    app: &App,
    result: Result<bool, StoreError>,
    undone: &str,
    otherwise: bool,
) -> (bool, bool) {
    match result {
        Ok(done) => (done, app.engine.store().is_degraded()),
        Err(error) => {
            app.store_failed(&error, undone);
            (otherwise, true)
        }
    }
}

fn respond(name: &str, (done, degraded): (bool, bool)) -> Response<Body> {
    let degraded = if degraded { ",\"degraded\":true" } else { "" };
    respond::json(format!("{{\"{name}\":{done}{degraded}}}"))
}

/// Takes the lease, which is the last field that a call reads.
fn take_lease(app: &App, fields: &mut Object<'_>, expected: &str) -> Result<Lease, FieldError> {
    let lease = fields.take("lease", text)?;
    fields.finish(expected)?;
    let lease = lease.ok_or_else(|| FieldError::new("lease", "is missing"))?;
    let lease = app.leases.parse(&lease);
    lease.ok_or_else(|| FieldError::new("lease", "is not the id of a lease"))
}

fn http_status(field: &str, value: &RawValue) -> Result<u16, FieldError> {
    let status = whole(field, value, 599)?;
    let status = u16::try_from(status).ok().filter(|status| *status >= 100);
    status.ok_or_else(|| FieldError::new(field, "expected an HTTP status from 100 to 599"))
}

#[cfg(test)]
mod tests;
