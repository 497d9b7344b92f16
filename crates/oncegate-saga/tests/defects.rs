//! Defects of a definition are reported when it is loaded: each in its own words, with its line, the state and the event.

use oncegate_saga::{Defect, Draft, Effects, FieldKind};

/// A correct saga.
const RIGHT: &str = r#"name = "order"
correlation = "event.data.orderId"
retention = "7d"
events = ["Placed", "Paid", "Timeout"]
states = ["Waiting", "Done", "Failed"]
terminal = ["Done", "Failed"]
[data]
orderId = "string"
items = "list"
[[on]]
in = "none"
event = "Placed"
take = ["orderId", "items"]
schedule = [{ event = "Timeout", after = "1h" }]
to = "Waiting"
[[on]]
in = "Waiting"
event = "Paid"
unschedule = ["Timeout"]
send = [{ command = "Ship", each = "saga.items", payload = { item = "each" } }]
to = "Done"
[[on]]
in = "Waiting"
event = "Timeout"
to = "Failed"
[[ignore]]
in = "Waiting"
event = "Placed"
[[ignore]]
in = ["Done", "Failed"]
event = "*"
[[unexpected]]
in = "none"
event = ["Paid", "Timeout"]
"#;

fn defects(text: &str) -> Vec<Defect> {
    match Draft::read("order.toml", text).and_then(Draft::check) {
        Ok(_) => vec![],
        Err(defects) => defects.0,
    }
}

/// The defects of the correct saga after one replacement.
fn with(right: &str, wrong: &str) -> Vec<Defect> {
    assert!(RIGHT.contains(right), "{right:?} is in it");
    defects(&RIGHT.replacen(right, wrong, 1))
}

/// The only defect: its line, its state and event, and what it says.
#[track_caller]
fn only(mut found: Vec<Defect>) -> (usize, Option<String>, Option<String>, String) {
    assert_eq!(found.len(), 1, "{found:#?}");
    let defect = found.remove(0);
    assert_eq!(defect.file, "order.toml");
    (defect.line, defect.state, defect.event, defect.message)
}

#[track_caller]
fn says(found: Vec<Defect>, line: usize, message: &str) {
    let (at, _, _, said) = only(found);
    assert_eq!((at, said.as_str()), (line, message));
}

#[track_caller]
fn says_of(found: Vec<Defect>, line: usize, state: &str, event: &str, message: &str) {
    let none = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    assert_eq!(only(found), (line, none(state), none(event), message.to_owned()));
}

#[test]
fn what_is_right_has_no_defect() {
    assert_eq!(defects(RIGHT), []);
}

#[test]
fn what_is_no_toml_or_has_strange_keys_is_refused_where_it_is() {
    let (line, _, _, said) = only(with("to = \"Waiting\"", "to = Waiting"));
    assert_eq!(line, 15, "{said}");
    let (line, _, _, said) = only(with("unschedule = [\"Timeout\"]", "unshedule = [\"Timeout\"]"));
    assert!(line == 19 && said.starts_with("unknown field `unshedule`, expected one of"), "{line}: {said}");
    let (line, _, _, said) = only(with("to = \"Failed\"", "to = 7"));
    assert!(line == 25 && said.starts_with("invalid type: integer `7`, expected a string"), "{line}: {said}");
    let (line, _, _, said) = only(with("name = \"order\"\n", ""));
    assert!(line == 1 && said.contains("missing field `name`"), "{line}: {said}");
}

#[test]
fn names_are_checked() {
    let wrong = "has letters, digits, `-`, `_`, `.` and `:`, 128 at most";
    says(with("\"order\"", "\"my order\""), 1, &format!("a saga's name {wrong}; \"my order\" is none"));
    says(with("\"order\"", "\"dead-letters\""), 1, "a saga cannot be called \"dead-letters\"");
    says(with("command = \"Ship\"", "command = \"\""), 20, &format!("a command's name {wrong}; \"\" is none"));
    says(
        with("states = [\"Waiting\"", "states = [\"none\", \"Waiting\""),
        5,
        "`none` is no state of yours: it is where an instance is that is not there yet",
    );
    says(with("states = [\"Waiting\"", "states = [\"Waiting\", \"Waiting\""), 5, "the state Waiting is listed twice");
}

#[test]
fn what_has_to_be_there_is_asked_for() {
    says(
        with("correlation = \"event.data.orderId\"\n", ""),
        1,
        "`correlation` is missing: say where the correlation id is, as correlation = \"event.data.orderId\"",
    );
    let without = with("in = \"Waiting\"\nevent = \"Paid\"\n", "in = [\"Waiting\"]\n");
    let told: Vec<_> = without.iter().map(|defect| (defect.line, defect.message.as_str())).collect();
    assert_eq!(told[1], (16, "a row needs `in` and `event`: in which states, and which events"));
    assert_eq!((told.len(), told[0].0), (2, 5), "and the pair is missing");
    let (line, _, event, said) =
        only(with("schedule = [{ event = \"Timeout\", after = \"1h\" }]", "schedule = [{ event = \"Timeout\" }]"));
    assert_eq!((line, event.as_deref()), (14, Some("Timeout")));
    assert_eq!(said, "say when Timeout comes: after = \"60m\", or at = an expression");
}

#[test]
fn every_pair_of_state_and_event_is_spoken_of_once() {
    says_of(
        with("[[ignore]]\nin = \"Waiting\"\nevent = \"Placed\"\n", ""),
        5,
        "Waiting",
        "Placed",
        "event Placed in state Waiting is neither handled, ignored nor unexpected: say which",
    );
    says_of(
        with("event = [\"Paid\", \"Timeout\"]", "event = [\"Timeout\"]"),
        1,
        "none",
        "Paid",
        "event Paid in state none is neither handled, ignored nor unexpected: say which",
    );
    says_of(
        with("in = \"Waiting\"\nevent = \"Placed\"", "in = \"Waiting\"\nevent = [\"Placed\", \"Paid\"]"),
        28,
        "Waiting",
        "Paid",
        "event Paid in state Waiting is spoken of twice; the first time in line 18",
    );
}

#[test]
fn names_that_are_not_there_are_named_with_the_nearest() {
    says_of(
        with("to = \"Failed\"", "to = \"Faild\""),
        25,
        "Faild",
        "",
        "there is no state Faild; did you mean Failed?",
    );
    says_of(
        with("terminal = [\"Done\", \"Failed\"]", "terminal = [\"Done\", \"Failed\", \"Zzz\"]"),
        6,
        "Zzz",
        "",
        "there is no state Zzz",
    );
    says_of(
        with("unschedule = [\"Timeout\"]", "unschedule = [\"Timeot\"]"),
        19,
        "",
        "Timeot",
        "there is no event Timeot in `events`; did you mean Timeout?",
    );
    says(
        with("take = [\"orderId\"", "take = [\"orderID\""),
        13,
        "there is no field orderID in `data`; did you mean orderId?",
    );
    says(
        with("items = \"list\"", "items = \"array\""),
        9,
        "the field items is one of string, number, bool, list, map, any, not \"array\"",
    );
}

#[test]
fn expressions_are_read_and_their_names_looked_up() {
    let (line, _, _, said) = only(with("correlation = \"event.data.orderId\"", "correlation = \"event.data.\""));
    assert!(line == 2 && said.starts_with("`event.data.` is no expression: "), "{said}");
    says(with("each = \"saga.items\"", "each = \"saga.itms\""), 20, "`saga.itms`: `saga` has no `itms`");
    says(
        with("item = \"each\"", "item = \"eech\""),
        20,
        "`eech`: there is no `eech`; there are event, saga, now, each",
    );
    says(
        with("\"event.data.orderId\"", "\"event.payload.orderId\""),
        2,
        "`event.payload.orderId`: `event` has no `payload`",
    );
    says(
        with("\"event.data.orderId\"", "\"lower(event.data.orderId)\""),
        2,
        "`lower(event.data.orderId)`: there is no function `lower`",
    );
    says(with("\"event.data.orderId\"", "\"saga.orderId\""), 2, "`saga.orderId`: there is no `saga`; there are event");
    says(
        with("after = \"1h\"", "after = \"an hour\""),
        14,
        "\"an hour\" is no duration: a duration is a whole number and a unit: \"500ms\", \"30s\", \"15m\", \"24h\", \"365d\"",
    );
}

#[test]
fn terminal_states_ignore_whatever_can_still_arrive() {
    says_of(
        with(
            "in = [\"Done\", \"Failed\"]\nevent = \"*\"",
            "in = \"Failed\"\nevent = \"*\"\n[[unexpected]]\nin = \"Done\"\nevent = \"Paid\"\n[[ignore]]\nin = \"Done\"\nevent = [\"Placed\", \"Timeout\"]",
        ),
        34,
        "Done",
        "Paid",
        "Done is terminal: there it ignores Paid, which can still arrive",
    );
}

#[test]
fn every_state_can_be_reached_and_every_event_is_of_use() {
    says_of(
        with(
            "states = [\"Waiting\", \"Done\", \"Failed\"]\nterminal = [\"Done\", \"Failed\"]",
            "states = [\"Waiting\", \"Done\", \"Failed\", \"Lost\"]\nterminal = [\"Done\", \"Failed\", \"Lost\"]",
        )
        .into_iter()
        .filter(|defect| !defect.message.contains("neither"))
        .chain(defects(&RIGHT.replace("\"Failed\"]", "\"Failed\", \"Lost\"]")))
        .collect(),
        5,
        "Lost",
        "",
        "the state Lost cannot be reached: no row leads there",
    );
    says_of(
        defects(
            &RIGHT.replace(
                "terminal = [\"Done\", \"Failed\"]",
                "terminal = [\"Done\", \"Failed\"]\nunreached = [\"Done\"]",
            ),
        ),
        7,
        "Done",
        "",
        "Done is reached: take it out of `unreached`",
    );
    let unused = RIGHT.replace("\"Timeout\"]\nstates", "\"Timeout\", \"Seen\"]\nstates");
    let unused = unused.replace("event = \"Placed\"\n[[ignore]]", "event = [\"Placed\", \"Seen\"]\n[[ignore]]");
    let unused = unused.replace("[\"Paid\", \"Timeout\"]", "[\"Paid\", \"Timeout\", \"Seen\"]");
    says_of(defects(&unused), 4, "", "Seen", "the event Seen is handled in no state");
}

#[test]
fn a_scheduled_event_is_handled_or_ignored_wherever_it_can_arrive() {
    // Paid leads on to another state, and the timer stays scheduled.
    let on = RIGHT
        .replace("states = [\"Waiting\", ", "states = [\"Waiting\", \"Paid\", ")
        .replace("unschedule = [\"Timeout\"]\n", "")
        .replace("to = \"Done\"", "to = \"Paid\"")
        + "[[on]]\nin = \"Paid\"\nevent = \"Placed\"\nto = \"Done\"\n[[unexpected]]\nin = \"Paid\"\nevent = [\"Paid\", \"Timeout\"]\n";
    says_of(
        defects(&on),
        40,
        "Paid",
        "Timeout",
        "Timeout is scheduled, and can arrive in state Paid: handle it there, or ignore it",
    );
    // If it is unscheduled on the path, it cannot arrive.
    let off = on.replace("send = [{", "unschedule = [\"Timeout\"]\nsend = [{");
    assert_eq!(defects(&off), []);
    says_of(
        with("schedule = [{ event = \"Timeout\", after = \"1h\" }]\n", ""),
        18,
        "",
        "Timeout",
        "nothing schedules Timeout",
    );
}

#[test]
fn what_is_scheduled_on_the_way_into_a_terminal_state_never_comes() {
    says_of(
        with(
            "event = \"Timeout\"\nto = \"Failed\"",
            "event = \"Timeout\"\nschedule = [{ event = \"Paid\", after = \"1h\" }]\nto = \"Failed\"",
        ),
        25,
        "",
        "Paid",
        "Paid is scheduled on the way into a terminal state: there it is not awaited any more",
    );
    let hook = format!("{RIGHT}[enter.Done]\nschedule = [{{ event = \"Paid\", after = \"1h\" }}]\n");
    says_of(
        defects(&hook),
        36,
        "",
        "Paid",
        "Paid is scheduled on the way into a terminal state: there it is not awaited any more",
    );
}

#[test]
fn what_would_be_gone_too_soon_is_refused() {
    says(with("retention = \"7d\"", "retention = \"0s\""), 3, "retention is 1m to 3650d, not 0s");
}

#[test]
fn rows_and_branches_make_sense() {
    says_of(
        with("to = \"Waiting\"\n", ""),
        10,
        "none",
        "Placed",
        "a row in `none` makes an instance: say which state it begins in, as to = \"…\"",
    );
    says(
        with("event = \"Timeout\"\nto = \"Failed\"", "event = \"Timeout\""),
        22,
        "a row that does nothing: list its events under `ignore`, or say what happens",
    );
    says(
        with("event = \"Timeout\"\nto = \"Failed\"", "event = \"Timeout\"\nif = \"true\"\nto = \"Failed\""),
        25,
        "a condition belongs into a branch: branch = [{ if = \"…\", to = \"…\" }]",
    );
    says(
        with(
            "event = \"Timeout\"\nto = \"Failed\"",
            "event = \"Timeout\"\nbranch = [{ to = \"Failed\" }, { if = \"true\", to = \"Done\" }]",
        ),
        25,
        "this branch is never reached: the one before it has no condition",
    );
    says(
        with(
            "event = \"Timeout\"\nto = \"Failed\"",
            "event = \"Timeout\"\nbranch = [{ require = { fields = [\"items\"] }, to = \"Failed\" }]",
        ),
        25,
        "`require` belongs to the row, not to a branch",
    );
    let hook = format!("{RIGHT}[enter.Done]\nto = \"Failed\"\n");
    says_of(defects(&hook), 36, "Done", "", "entering Done happens whatever the condition, and leads nowhere else");
}

#[test]
fn all_defects_are_told_at_once_in_the_order_of_their_lines() {
    let text = RIGHT.replace("after = \"1h\"", "after = \"soon\"").replace("to = \"Failed\"", "to = \"Faild\"");
    assert_eq!(defects(&text).iter().map(|defect| defect.line).collect::<Vec<_>>(), [14, 25]);
}

#[test]
fn a_definition_that_is_built_in_rust_has_its_defects_at_its_lines() {
    let line = line!() as usize + 1;
    let effects = Effects::default().take(["orderID"]).to("Dune");
    let built = Draft::new("order")
        .correlation("event.data.orderId")
        .events(["Placed"])
        .states(["Done"])
        .terminal(["Done"])
        .data("orderId", FieldKind::String)
        .on("none", "Placed", effects)
        .ignore("Done", "*")
        .check();
    let defects = built.expect_err("it is wrong").0;
    let told: Vec<_> = defects.iter().map(|defect| (defect.line, defect.message.as_str())).collect();
    let expected =
        ["there is no field orderID in `data`; did you mean orderId?", "there is no state Dune; did you mean Done?"];
    assert_eq!(told, expected.map(|message| (line, message)));
    assert!(defects[0].file.ends_with("tests/defects.rs"));
}
