//! `[projections.NAME]`: rules that turn events into jobs, and how an event becomes a payload.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outhaul::{Failure, NewJob, Projection, RecordedEvent, Rule, Start, Subscription};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use toml::{Table, Value as Toml};

use super::times;
use crate::exit::Problem;

/// A projection as a file declares it.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    form: Form,
    /// The file that says so.
    pub(crate) path: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    /// Where it begins when it is new: `beginning`, `now`, a position or a time.
    start: Option<Toml>,
    batch: Option<i32>,
    park_after: Option<i32>,
    rules: Vec<RuleForm>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleForm {
    event: String,
    job: String,
    queue: Option<String>,
    name: Option<String>,
    priority: Option<i32>,
    max_attempts: Option<i32>,
    delay: Option<String>,
    /// Texts, or where they stand in the event.
    ordering_key: Option<Toml>,
    limit_key: Option<Toml>,
    rate_key: Option<Toml>,
    /// By name of the field; without it the job has the payload of the event.
    payload: Option<BTreeMap<String, Toml>>,
}

const HINT: &str =
    "Write: [[projections.NAME.rules]], then event = \"order.placed\" and job = \"mail.receipt\"";

/// Reads the projections of a file.
pub(super) fn read(path: &Path, table: &Table) -> Result<BTreeMap<String, Declared>, Problem> {
    let Some(value) = table.get("projections") else { return Ok(BTreeMap::new()) };
    let bad = |what: String| Problem::config(format!("{}: {what}", path.display())).hint(HINT);
    let table = value.as_table().ok_or_else(|| bad("projections must be a table".into()))?;
    let declared = |(name, value): (&String, &Toml)| {
        let wrong = |what: &str| bad(format!("[projections.{name:?}]: {what}"));
        let form: Form = value.clone().try_into().map_err(|error: toml::de::Error| wrong(error.message()))?;
        let declared = Declared { form, path: path.to_owned() };
        // What is wrong is said when the file is read, and not when the first event comes.
        declared.projection(name, &BTreeMap::new()).map_err(|what| wrong(&what))?;
        Ok((name.clone(), declared))
    };
    table.iter().map(declared).collect()
}

impl Declared {
    /// The projection. A rule that names no queue takes the one that its job's type is bound to.
    ///
    /// # Errors
    /// What is wrong, and in which rule.
    pub(crate) fn projection(
        &self,
        name: &str,
        queues: &BTreeMap<String, String>,
    ) -> Result<Projection, String> {
        let form = &self.form;
        let mut subscription = Subscription::new(name);
        if let Some(start) = &form.start {
            let text = start.as_str().map_or_else(|| start.to_string(), str::to_owned);
            subscription = subscription.start(text.parse::<Start>().map_err(|error| error.to_string())?);
        }
        if let Some(events) = form.batch {
            subscription = subscription.batch(events);
        }
        if let Some(attempts) = form.park_after {
            subscription = subscription.park_after(attempts);
        }
        let mut projection = Projection::new(subscription);
        for rule in &form.rules {
            let queue = rule.queue.as_ref().or_else(|| queues.get(&rule.job));
            let queue = queue.map_or("default", String::as_str);
            let named = |what: String| format!("rule {}: {what}", rule.name());
            projection = projection.rule(rule.rule(queue).map_err(named)?);
        }
        Ok(projection)
    }
}

impl Declared {
    /// What to say about each rule whose jobs go to the queue `default` only because nothing names another.
    pub(super) fn unbound(&self, name: &str, bound: impl Fn(&str) -> bool) -> Vec<String> {
        let rules = self.form.rules.iter().filter(|rule| rule.queue.is_none() && !bound(&rule.job));
        let text = |rule: &RuleForm| {
            let (job, path) = (&rule.job, self.path.display());
            format!(
                "projection {name} makes {job} jobs that nobody here runs: they go to queue \"default\" and stay pending unless another \
                 worker runs them there. In {path} bind the type, [jobs.{job:?}], or name the queue in the rule: queue = \"NAME\""
            )
        };
        rules.map(text).collect()
    }
}

/// Its rules, each as `event -> job`.
impl std::fmt::Display for Declared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules = self.form.rules.iter().map(|rule| format!("{} -> {}", rule.event, rule.job));
        f.write_str(&rules.collect::<Vec<_>>().join(", "))
    }
}

impl RuleForm {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.job)
    }

    fn rule(&self, queue: &str) -> Result<Rule, String> {
        let delay = self.delay.as_deref().map(|text| times::DELAY.parse(text)).transpose()?;
        let (queue, job_type) = (queue.to_owned(), self.job.clone());
        let (priority, attempts) = (self.priority, self.max_attempts);
        let job = move |payload: String| {
            let mut job = NewJob::raw(&queue, &job_type, payload);
            job = priority.into_iter().fold(job, NewJob::priority);
            job = attempts.into_iter().fold(job, NewJob::max_attempts);
            delay.into_iter().fold(job, NewJob::delay)
        };
        let fields = self.payload.as_ref().map(Fields::read).transpose()?;
        let keys = Keys {
            ordering: self.ordering_key.as_ref().map(|key| Part::key("ordering_key", key)).transpose()?,
            limit: self.limit_key.as_ref().map(|key| Part::key("limit_key", key)).transpose()?,
            rate: self.rate_key.as_ref().map(|key| Part::key("rate_key", key)).transpose()?,
        };
        keys.constant(job("{}".to_owned())).check().map_err(|error| error.to_string())?;
        let make = move |event: &RecordedEvent| -> Result<Option<NewJob>, Failure> {
            let payload = match &fields {
                Some(fields) => fields.of(event)?,
                None => event.payload.to_string(),
            };
            Ok(Some(keys.of(event, job(payload))?))
        };
        Ok(Rule::new(self.name(), &self.event, make))
    }
}

/// How the payload of a job is made, field by field.
#[derive(Clone, Debug)]
struct Fields(Vec<(String, Part)>);

#[derive(Clone, Debug)]
enum Part {
    /// JSON as it stands in the file.
    Is(String),
    /// What stands in the event at a JSON Pointer (RFC 6901), or else this JSON.
    From(String, Option<String>),
}

impl Part {
    /// What a file says: JSON as it stands there, or `{ from = "/POINTER", default = ... }`.
    fn read(place: &str, value: &Toml) -> Result<Part, String> {
        let json = |value: &Toml| serde_json::to_string(value).map_err(|error| error.to_string());
        let Some(from) = value.as_table().and_then(|table| table.get("from")) else {
            return Ok(Part::Is(json(value)?));
        };
        let pointer = from.as_str().filter(|pointer| is_pointer(pointer)).ok_or_else(|| {
            format!("{place}: from is a JSON Pointer into the event, such as \"/payload/user\"")
        })?;
        let known = |key: &str| key == "from" || key == "default";
        let table = value.as_table().into_iter().flatten();
        if let Some((key, _)) = table.into_iter().find(|(key, _)| !known(key)) {
            return Err(format!("{place}: unknown key {key:?} beside from"));
        }
        let default = value.as_table().and_then(|table| table.get("default")).map(json);
        Ok(Part::From(pointer.to_owned(), default.transpose()?))
    }

    /// The same for a key of the job, which is a text.
    fn key(place: &str, value: &Toml) -> Result<Part, String> {
        let part = Part::read(place, value)?;
        let (Part::Is(json) | Part::From(_, Some(json))) = &part else { return Ok(part) };
        match text_of(json) {
            Some(_) => Ok(part),
            None => Err(format!(
                "{place}: a key is a text, or a place in the event: {{ from = \"/aggregate_id\" }}"
            )),
        }
    }

    /// The JSON for an event.
    fn of(&self, event: &RecordedEvent, document: &RawValue) -> Result<String, Failure> {
        match self {
            Part::Is(json) => Ok(json.clone()),
            Part::From(pointer, default) => match (at(document, pointer), default) {
                (Some(found), _) => Ok(found.get().to_owned()),
                (None, Some(default)) => Ok(default.clone()),
                (None, None) => {
                    let what = format!("{} has nothing at {pointer}", event.event_type);
                    Err(Failure::permanent(what).code("payload_missing"))
                }
            },
        }
    }
}

/// A text, a number or a truth value as the text of a key.
fn text_of(json: &str) -> Option<String> {
    match json.as_bytes().first()? {
        b'"' => serde_json::from_str(json).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(json.to_owned()),
    }
}

/// The keys of a job.
#[derive(Clone, Debug)]
struct Keys {
    ordering: Option<Part>,
    limit: Option<Part>,
    rate: Option<Part>,
}

/// Gives a job one of its keys.
type SetKey = fn(NewJob, String) -> NewJob;

impl Keys {
    fn each(&self) -> impl Iterator<Item = (&Part, SetKey)> {
        let set: [(&Option<Part>, SetKey); 3] = [
            (&self.ordering, NewJob::ordering_key),
            (&self.limit, NewJob::limit_key),
            (&self.rate, NewJob::rate_key),
        ];
        set.into_iter().filter_map(|(part, set)| Some((part.as_ref()?, set)))
    }

    /// With the keys that are the same for every event.
    fn constant(&self, job: NewJob) -> NewJob {
        self.each().fold(job, |job, (part, set)| match part {
            Part::Is(json) => text_of(json).into_iter().fold(job, set),
            Part::From(..) => job,
        })
    }

    /// With the keys for an event.
    fn of(&self, event: &RecordedEvent, job: NewJob) -> Result<NewJob, Failure> {
        if self.each().next().is_none() {
            return Ok(job);
        }
        let document = document(event)?;
        self.each().try_fold(job, |job, (part, set)| {
            let text = text_of(&part.of(event, &document)?).ok_or_else(|| {
                let what = format!("{} has no text for a key of its job", event.event_type);
                Failure::permanent(what).code("key_no_text")
            })?;
            Ok(set(job, text))
        })
    }
}

impl Fields {
    fn read(fields: &BTreeMap<String, Toml>) -> Result<Fields, String> {
        let part = |(name, value): (&String, &Toml)| {
            Ok((name.clone(), Part::read(&format!("payload.{name}"), value)?))
        };
        fields.iter().map(part).collect::<Result<_, String>>().map(Fields)
    }

    /// The payload for an event.
    fn of(&self, event: &RecordedEvent) -> Result<String, Failure> {
        let document = document(event)?;
        let mut payload = BTreeMap::new();
        for (name, part) in &self.0 {
            payload.insert(name, RawValue::from_string(part.of(event, &document)?)?);
        }
        Ok(serde_json::to_string(&payload)?)
    }
}

fn document(event: &RecordedEvent) -> Result<Box<RawValue>, Failure> {
    Ok(RawValue::from_string(serde_json::to_string(&Document::of(event)?)?)?)
}

fn is_pointer(text: &str) -> bool {
    let first = text.strip_prefix('/').and_then(|path| path.split('/').next());
    first.is_some_and(|field| Document::FIELDS.contains(&field))
}

/// The event as pointers see it.
#[derive(Serialize)]
struct Document<'a> {
    id: String,
    position: i64,
    event_type: &'a str,
    aggregate_type: &'a str,
    aggregate_id: String,
    schema_version: i32,
    occurred_at: String,
    recorded_at: String,
    organization: Option<String>,
    partition_key: Option<&'a str>,
    payload: &'a RawValue,
}

impl Document<'_> {
    const FIELDS: [&'static str; 11] = [
        "id",
        "position",
        "event_type",
        "aggregate_type",
        "aggregate_id",
        "schema_version",
        "occurred_at",
        "recorded_at",
        "organization",
        "partition_key",
        "payload",
    ];

    fn of(event: &RecordedEvent) -> Result<Document<'_>, Failure> {
        Ok(Document {
            id: event.id.to_string(),
            position: event.position,
            event_type: &event.event_type,
            aggregate_type: &event.aggregate_type,
            aggregate_id: event.aggregate_id.to_string(),
            schema_version: event.schema_version,
            occurred_at: event.occurred_at.to_string(),
            recorded_at: event.recorded_at.to_string(),
            organization: event.organization.map(|id| id.to_string()),
            partition_key: event.partition_key.as_deref(),
            payload: serde_json::from_str(&event.payload)?,
        })
    }
}

/// What stands at a pointer. The text is kept as it is: a number keeps all its digits.
fn at<'a>(json: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let mut json = json;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        json = match json.get().as_bytes().first()? {
            b'{' => {
                serde_json::from_str::<BTreeMap<String, &'a RawValue>>(json.get()).ok()?.remove(&token)?
            }
            b'[' => {
                let items: Vec<&'a RawValue> = serde_json::from_str(json.get()).ok()?;
                items.get(token.parse::<usize>().ok()?)?
            }
            _ => return None,
        };
    }
    (json.get() != "null").then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn a_pointer_finds_what_stands_there_with_all_its_digits() {
        let json = raw(r#"{"a/b": {"m~n": [1, {"x": 12345678901234567890.123456789}]}, "none": null}"#);
        assert_eq!(at(&json, "/a~1b/m~0n/1/x").unwrap().get(), "12345678901234567890.123456789");
        assert_eq!(at(&json, "/a~1b/m~0n/0").unwrap().get(), "1");
        assert_eq!(at(&raw(r#"{"~1": 7}"#), "/~01").unwrap().get(), "7", "an escaped escape is none");
        for missing in ["/a", "/a~1b/m~0n/2", "/a~1b/m~0n/x", "/none", "/a~1b/m~0n/0/y"] {
            assert!(at(&json, missing).is_none(), "{missing}");
        }
    }

    fn file(text: &str) -> Result<BTreeMap<String, Declared>, Problem> {
        read(Path::new("outhaul.toml"), &text.parse().unwrap())
    }

    #[test]
    fn what_is_wrong_in_a_rule_is_said_when_the_file_is_read() {
        let rule = |more: &str| format!("[[projections.p.rules]]\nevent = \"a.b\"\njob = \"c.d\"\n{more}\n");
        assert_eq!(file(&rule("")).unwrap().len(), 1);
        for (text, word) in [
            (rule("jobb = 1"), "unknown field `jobb`"),
            (rule("priority = 11"), "priority"),
            (rule("delay = \"soon\""), "rule c.d"),
            (rule("payload = { x = { from = \"payload\" } }"), "JSON Pointer"),
            (rule("payload = { x = { from = \"/paylod/x\" } }"), "JSON Pointer"),
            (rule("payload = { x = { from = \"/payload/x\", els = 1 } }"), "unknown key \"els\""),
            (rule("ordering_key = { from = \"payload\" }"), "ordering_key: from is a JSON Pointer"),
            (rule("limit_key = [1]"), "limit_key: a key is a text"),
            (rule("rate_key = { from = \"/payload/x\", default = {} }"), "rate_key: a key is a text"),
            (rule("limit_key = \"\""), "limit key has 0 bytes"),
            ("[projections.p]\nstart = \"soon\"\nrules = []\n".into(), "start"),
            ("[projections.p]\nbatch = 1\n".into(), "missing field `rules`"),
            ("projections = 1".into(), "must be a table"),
        ] {
            let problem = file(&text).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert!(problem.message.contains(word) && problem.hint.is_some(), "{}", problem.message);
        }
    }
}
