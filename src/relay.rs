//! Messages that leave the machine: delivered at least once, each under one id, in order per ordering key.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;

/// Carries messages to the outside. A job whose kind was given a relay ([`RunnerBuilder::relay`]) is a message: it goes
/// out when the transaction that enqueued it has committed, and is done when [`publish`](Relay::publish) has returned `Ok`.
///
/// A process that dies between the two publishes again, with the same id and the same body, so the receiver tells a repeat
/// by the id. Messages of one ordering key go out one at a time, oldest first.
///
/// ```
/// use birkez::{Context, Job, Message, Relay, Runner};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Receipt { sale: u32 }
///
/// impl Job for Receipt {
///     const KIND: &'static str = "receipt";
///     type Output = ();
///     fn key(&self) -> String { self.sale.to_string() }
/// }
///
/// /// Hands messages to a printer.
/// struct Printer;
///
/// impl Relay for Printer {
///     type Receipt = ();
///     fn publish(&self, message: &Message<'_>, _cx: &Context) -> anyhow::Result<()> {
///         println!("{} {}", message.id(), message.body());
///         Ok(())
///     }
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// # let folder = birkez::testing::TempStore::new()?;
/// # let store = folder.open()?;
/// let runner = Runner::builder(&store).relay::<Receipt>(Printer).start()?;
/// # Ok(())
/// # }
/// ```
///
/// [`RunnerBuilder::relay`]: crate::RunnerBuilder::relay
pub trait Relay: Send + Sync + 'static {
    /// What the receiver answered; stored as the job's output.
    type Receipt: Serialize + DeserializeOwned + Send + 'static;

    /// Publishes one message.
    ///
    /// # Errors
    ///
    /// As a handler's: transient, unless it carries a verdict (see [`Verdicts`](crate::Verdicts)).
    fn publish(&self, message: &Message<'_>, cx: &Context) -> anyhow::Result<Self::Receipt>;
}

/// A message on its way.
#[derive(Debug)]
pub struct Message<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) id: String,
    pub(crate) body: &'a str,
}

impl Message<'_> {
    /// What the receiver tells repeats by. It stays the same through retries, restarts and replays
    /// ([`Context::idempotency_key`]).
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The payload as it was committed, to the byte: it is not decoded on the way.
    pub fn body(&self) -> &str {
        self.body
    }

    /// The message's kind.
    pub fn kind(&self) -> &str {
        self.cx.kind()
    }

    /// The message's own key.
    pub fn key(&self) -> &str {
        self.cx.key()
    }

    /// What it is in order with.
    pub fn ordering_key(&self) -> Option<&str> {
        self.cx.claim.ordering_key.as_deref()
    }
}
