//! Handlers of events by type: which one an event goes to, and its payload read for it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::events::{EventContext, RecordedEvent};
use super::handle::Outcome;
use crate::failure::Failure;
use crate::model::Event;

type Handler =
    dyn Fn(RecordedEvent, EventContext) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync;

/// Handlers for several types of events, each with its payload read for it.
///
/// For [`WorkerBuilder::subscribe_typed`](crate::WorkerBuilder::subscribe_typed) and
/// [`WorkerBuilder::relay_typed`](crate::WorkerBuilder::relay_typed). The rest of the event, its id and position for
/// example, is in [`EventContext::event`].
///
/// ```
/// use outhaul::{Event, EventContext, EventHandlers, Failure};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPaid { cents: i64 }
///
/// impl Event for OrderPaid {
///     const TYPE: &'static str = "order.paid";
///     const AGGREGATE_TYPE: &'static str = "order";
/// }
///
/// let handlers = EventHandlers::new().on(|paid: OrderPaid, cx: EventContext| async move {
///     println!("order {}: {} cents", cx.event().aggregate_id, paid.cents);
///     Ok::<(), Failure>(())
/// });
/// # let _ = handlers;
/// ```
#[derive(Clone, Default)]
pub struct EventHandlers {
    by_type: HashMap<&'static str, Arc<Handler>>,
    otherwise: Option<Arc<Handler>>,
    /// A type that was given two handlers, which the worker refuses.
    twice: Option<&'static str>,
}

impl EventHandlers {
    /// No handlers yet.
    pub fn new() -> EventHandlers {
        EventHandlers::default()
    }

    /// Handles the events of one type. A payload that cannot be read is a failure: see [`RecordedEvent::decode`].
    pub fn on<E, F, Fut>(mut self, handler: F) -> EventHandlers
    where
        E: Event,
        F: Fn(E, EventContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let typed = move |event: RecordedEvent, cx: EventContext| {
            let handler = handler.clone();
            let run: Pin<Box<dyn Future<Output = Outcome> + Send>> =
                Box::pin(async move { handler(event.decode::<E>()?, cx).await });
            run
        };
        if self.by_type.insert(E::TYPE, Arc::new(typed)).is_some() {
            self.twice = Some(E::TYPE);
        }
        self
    }

    /// Handles the events of all other types. Without it a subscription reads only the types that have a handler, and a
    /// relay, which is given all, fails at others for good.
    pub fn otherwise<F, Fut>(mut self, handler: F) -> EventHandlers
    where
        F: Fn(RecordedEvent, EventContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.otherwise = Some(Arc::new(move |event, cx| Box::pin(handler(event, cx))));
        self
    }

    /// The types to subscribe to; none for all.
    pub(crate) fn types(&self) -> Option<Vec<String>> {
        let mut types: Vec<String> = self.by_type.keys().map(|&name| name.to_owned()).collect();
        types.sort();
        self.otherwise.is_none().then_some(types)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_type.is_empty() && self.otherwise.is_none()
    }

    pub(crate) fn twice(&self) -> Option<&'static str> {
        self.twice
    }

    /// Hands an event to the handler of its type.
    pub(crate) async fn handle(self: Arc<EventHandlers>, event: RecordedEvent, cx: EventContext) -> Outcome {
        match self.by_type.get(&*event.event_type).or(self.otherwise.as_ref()) {
            Some(handler) => handler(event, cx).await,
            None => Err(Failure::permanent(format!("no handler for events of type {}", event.event_type))
                .code("unknown_event_type")),
        }
    }
}
