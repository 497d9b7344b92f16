//! The settings in the standard `OTEL_*` variables. Every wrong value is reported.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use opentelemetry::KeyValue;
use opentelemetry_otlp::Protocol;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::Sampler;
use percent_encoding::percent_decode_str;
use url::Url;

use oncegate_process::failure::Failure;

/// The maximum length of the span queue, whatever the variable says.
const QUEUE_MAX: u64 = 1 << 20;
/// A day: the maximum of every time, whatever the variable says.
const MILLIS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Variables that are not supported, and that the server may ignore: the log names them.
const IGNORED: [&str; 9] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_PROPAGATORS",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
];

#[derive(Debug)]
pub struct Settings {
    pub endpoint: Url,
    pub protocol: Protocol,
    /// The headers as they are given: their values are percent-encoded.
    pub headers: HashMap<String, String>,
    /// How long one request to the collector may take.
    pub within: Duration,
    pub resource: Resource,
    pub sampler: Sampler,
    /// The length of the span queue.
    pub queue: usize,
    /// The maximum spans of one batch.
    pub batch: usize,
    /// The maximum time that a span waits for its batch.
    pub every: Duration,
    /// Names of variables that are set and change nothing.
    pub ignored: Vec<&'static str>,
}

impl Settings {
    /// `None`: traces are off. An empty variable is one that is not set.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, Failure> {
        let given = Given(|name: &str| variable(name).filter(|value| !value.is_empty()));
        if given.one_of("OTEL_SDK_DISABLED", &["false", "true"])? == "true"
            || given.one_of("OTEL_TRACES_EXPORTER", &["otlp", "none"])? == "none"
        {
            return Ok(None);
        }
        let Some(endpoint) = given.endpoint()? else {
            if given.get("OTEL_TRACES_EXPORTER").is_some() {
                let hint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318";
                tracing::warn!(event = "traces.off", why = "there is no endpoint", hint);
            }
            return Ok(None);
        };
        let queue = given.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, QUEUE_MAX)?;
        let batch = given.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", queue.min(512), queue)?;
        let timeout = given.number(&given.of_traces("TIMEOUT").0, 10_000, MILLIS_MAX)?;
        let export_timeout = given.number("OTEL_BSP_EXPORT_TIMEOUT", 30_000, MILLIS_MAX)?;
        let is_had = |value: &str| value == "none" || value.contains("tracecontext");
        let is_ignored = |name: &&str| given.get(name).is_some_and(|value| !is_had(&value));
        Ok(Some(Settings {
            endpoint,
            protocol: given.protocol()?,
            headers: given.headers()?,
            within: Duration::from_millis(timeout.min(export_timeout)),
            resource: given.resource()?,
            sampler: given.sampler()?,
            queue: queue as usize,
            batch: batch as usize,
            every: Duration::from_millis(given.number("OTEL_BSP_SCHEDULE_DELAY", 5000, MILLIS_MAX)?),
            ignored: IGNORED.into_iter().filter(is_ignored).collect(),
        }))
    }
}

fn wrong(name: &str, why: impl Display) -> Failure {
    Failure::usage(format!("{name}: {why}"))
}

struct Given<F>(F);

impl<F: Fn(&str) -> Option<String>> Given<F> {
    fn get(&self, name: &str) -> Option<String> {
        self.0(name)
    }

    /// The value for the exporter, and the name of its variable: a variable for traces takes precedence over the general one.
    fn of_traces(&self, what: &str) -> (String, Option<String>) {
        let [traces, all] = ["OTEL_EXPORTER_OTLP_TRACES", "OTEL_EXPORTER_OTLP"].map(|of| format!("{of}_{what}"));
        match self.get(&traces) {
            Some(value) => (traces, Some(value)),
            None => (all.clone(), self.get(&all)),
        }
    }

    /// The value, which must be one of `known`; the first is the default.
    fn one_of(&self, name: &str, known: &[&'static str]) -> Result<&'static str, Failure> {
        let Some(value) = self.get(name) else { return Ok(known[0]) };
        let value = value.trim().to_ascii_lowercase();
        let found = known.iter().find(|known| **known == value);
        found.copied().ok_or_else(|| wrong(name, format_args!("{value:?} is not known")).hint(known.join(" or ")))
    }

    fn number(&self, name: &str, default: u64, max: u64) -> Result<u64, Failure> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let number = value.trim().parse().ok().filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| {
            wrong(name, format_args!("{value:?} is no whole number from 1 to {max}")).hint(default.to_string())
        })
    }

    /// A general URL gets the path of traces at its end.
    fn endpoint(&self) -> Result<Option<Url>, Failure> {
        let (name, Some(value)) = self.of_traces("ENDPOINT") else { return Ok(None) };
        let wrong = || {
            // The URL may contain a password, so the error does not repeat it.
            wrong(&name, "not an http or https URL, without a user or a password in it").hint(format!(
                "{name}=http://localhost:4318; what a collector wants to know goes into OTEL_EXPORTER_OTLP_HEADERS"
            ))
        };
        let mut url = Url::parse(value.trim()).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some() {
            return Err(wrong());
        }
        if !name.contains("TRACES") {
            url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend(["v1", "traces"]);
        }
        Ok(Some(url))
    }

    fn protocol(&self) -> Result<Protocol, Failure> {
        let (name, value) = self.of_traces("PROTOCOL");
        match value.as_deref().map_or("http/protobuf", str::trim) {
            "http/protobuf" => Ok(Protocol::HttpBinary),
            "http/json" => Ok(Protocol::HttpJson),
            other => Err(wrong(&name, format_args!("{other:?} is not spoken here"))
                .hint(format!("{name}=http/protobuf; collectors take it on port 4318, where that of grpc is 4317"))),
        }
    }

    fn headers(&self) -> Result<HashMap<String, String>, Failure> {
        let (name, value) = self.of_traces("HEADERS");
        for (header, value) in pairs(&name, value.as_deref())? {
            let is_right =
                HeaderName::try_from(&header).is_ok() && HeaderValue::try_from(decoded(&name, &value)?).is_ok();
            if !is_right {
                // The values of headers are often secret.
                return Err(wrong(&name, format_args!("{header:?} is no header, or its value none")).hint(PAIRS));
            }
        }
        Ok(pairs(&name, value.as_deref())?.into_iter().collect())
    }

    fn resource(&self) -> Result<Resource, Failure> {
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let mut attributes = vec![
            KeyValue::new("service.name", "oncegate"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ];
        for (key, value) in pairs(name, self.get(name).as_deref())? {
            attributes.push(KeyValue::new(key, decoded(name, &value)?));
        }
        attributes.extend(self.get("OTEL_SERVICE_NAME").map(|name| KeyValue::new("service.name", name)));
        // Of several values of one key, the last counts.
        Ok(Resource::builder_empty()
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_attributes(attributes)
            .build())
    }

    fn sampler(&self) -> Result<Sampler, Failure> {
        const KNOWN: [&str; 6] = [
            "parentbased_always_on",
            "parentbased_always_off",
            "parentbased_traceidratio",
            "always_on",
            "always_off",
            "traceidratio",
        ];
        let name = self.one_of("OTEL_TRACES_SAMPLER", &KNOWN)?;
        let root = match name.trim_start_matches("parentbased_") {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            _ => Sampler::TraceIdRatioBased(self.ratio()?),
        };
        Ok(if name.starts_with("parentbased_") { Sampler::ParentBased(Box::new(root)) } else { root })
    }

    fn ratio(&self) -> Result<f64, Failure> {
        let name = "OTEL_TRACES_SAMPLER_ARG";
        let Some(value) = self.get(name) else { return Ok(1.0) };
        let ratio = value.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or_else(|| wrong(name, format_args!("{value:?} is no number from 0 to 1")).hint(format!("{name}=0.1")))
    }
}

const PAIRS: &str = "name=value,name=value; what is neither a letter nor a digit may be written as %20";

fn pairs(name: &str, value: Option<&str>) -> Result<Vec<(String, String)>, Failure> {
    let pairs = value.unwrap_or_default().split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let read = |pair: &str| {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty())?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
    };
    pairs.map(|pair| read(pair).ok_or_else(|| wrong(name, "not a list of pairs").hint(PAIRS))).collect()
}

fn decoded(name: &str, value: &str) -> Result<String, Failure> {
    let decoded = percent_decode_str(value).decode_utf8();
    decoded.map(Into::into).map_err(|_| wrong(name, "a value is not UTF-8").hint(PAIRS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, Failure> {
        let all = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")];
        let find = |name: &str| variables.iter().chain(&all).find(|(known, _)| *known == name);
        Settings::read(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn on(variables: &[(&str, &str)]) -> Settings {
        read(variables).expect("nothing is wrong").expect("traces are on")
    }

    #[test]
    fn off_unless_an_endpoint_is_named_and_nothing_says_otherwise() {
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", ""), ("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().is_none());
        assert!(read(&[("OTEL_SDK_DISABLED", "TRUE")]).unwrap().is_none());
        assert!(read(&[("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
        assert!(read(&[("OTEL_SDK_DISABLED", "false"), ("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().is_some());
    }

    #[test]
    fn what_nobody_says_is_as_the_standard_has_it() {
        let settings = on(&[]);
        assert_eq!(settings.endpoint.as_str(), "http://collector:4318/v1/traces");
        assert_eq!(settings.protocol, Protocol::HttpBinary);
        assert_eq!((settings.queue, settings.batch), (2048, 512));
        assert_eq!((settings.within, settings.every), (Duration::from_secs(10), Duration::from_secs(5)));
        assert_eq!(format!("{:?}", settings.sampler), "ParentBased(AlwaysOn)");
        assert_eq!(settings.resource.get(&"service.name".into()), Some("oncegate".into()));
        assert!(settings.headers.is_empty() && settings.ignored.is_empty());
    }

    #[test]
    fn what_is_for_traces_alone_wins_and_their_endpoint_is_used_as_it_is() {
        let settings = on(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces.example/otlp"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "3000"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%20x, b = c"),
        ]);
        assert_eq!(settings.endpoint.as_str(), "https://traces.example/otlp");
        assert_eq!((settings.within, settings.protocol), (Duration::from_secs(3), Protocol::HttpJson));
        assert_eq!(settings.headers.len(), 2);
        assert_eq!(settings.headers["authorization"], "Bearer%20x");
        let settings = on(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector/below/")]);
        assert_eq!(settings.endpoint.as_str(), "http://collector/below/v1/traces");
    }

    #[test]
    fn a_service_is_named_by_its_variable_before_its_attributes() {
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,deployment.environment.name=pre%2Cprod");
        let name = |settings: &Settings| settings.resource.get(&"service.name".into());
        let settings = on(&[attributes]);
        assert_eq!(name(&settings), Some("a".into()));
        assert_eq!(settings.resource.get(&"deployment.environment.name".into()), Some("pre,prod".into()));
        assert_eq!(name(&on(&[attributes, ("OTEL_SERVICE_NAME", "b")])), Some("b".into()));
    }

    #[test]
    fn samplers_are_the_standards() {
        let sampler = |name, arg| {
            let settings = on(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", arg)]);
            format!("{:?}", settings.sampler)
        };
        assert_eq!(sampler("always_off", "x"), "AlwaysOff");
        assert_eq!(sampler("traceidratio", "0.25"), "TraceIdRatioBased(0.25)");
        assert_eq!(sampler("parentbased_traceidratio", ""), "ParentBased(TraceIdRatioBased(1.0))");
    }

    #[test]
    fn what_is_wrong_is_refused_by_its_name_and_secrets_are_not_repeated() {
        for (name, value) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:s3cr3t@collector:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "s3cr3t"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=s3cr3t%0a"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=s3cr3t"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=%ff"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2049"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "never"),
        ] {
            let failure = format!("{:?}", read(&[(name, value)]).expect_err(name));
            assert!(failure.contains(name) && failure.contains("hint: Some"), "{failure}");
            assert!(!failure.contains("s3cr3t"), "{failure}");
        }
        let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "half")];
        assert!(format!("{:?}", read(&ratio)).contains("OTEL_TRACES_SAMPLER_ARG"));
    }

    #[test]
    fn what_is_asked_for_and_not_had_is_named() {
        assert_eq!(on(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")]).ignored, ["OTEL_EXPORTER_OTLP_COMPRESSION"]);
        assert_eq!(on(&[("OTEL_PROPAGATORS", "b3")]).ignored, ["OTEL_PROPAGATORS"]);
        let had = [("OTEL_EXPORTER_OTLP_COMPRESSION", "none"), ("OTEL_PROPAGATORS", "tracecontext,baggage")];
        assert!(on(&had).ignored.is_empty());
    }
}
