//! `oncegate saga`: definitions checked and drawn, instances and dead letters, straight on the store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use oncegate::document;
use oncegate::sagas::{Cell, DeadLetter, Definition, LetterState, LineSeen, NONE, NotRetried, Outcome, Picture, Sagas};
use oncegate::{Time, WorkspaceName};
use serde_json::json;

use super::args::{One, Paging, Scope, Wanted, audit, one_of};
use super::show::{self, plain};
use super::with_ledger;
use oncegate_config::Config;
use oncegate_http::api::HISTORY_MAX;
use oncegate_http::audit::Audit;
use oncegate_http::sagas::not_loaded;
use oncegate_http::sagas::{self, DeadLetterView, HandledView, InstanceView, NotLoaded};
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, print, table, wide_table};

#[derive(Subcommand)]
pub enum Command {
    /// Check definitions, and print what each event does in each state
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        format: Format,
    },
    /// Draw a definition
    Diagram {
        file: PathBuf,
        /// How
        #[arg(long = "as", value_enum, default_value_t = Drawing::Svg)]
        drawing: Drawing,
    },
    /// List instances, newest first
    List(ListArgs),
    /// Show an instance, with its history
    Show {
        saga: String,
        correlation_id: String,
        #[command(flatten)]
        scope: Scope,
        #[command(flatten)]
        format: Format,
    },
    /// See dead letters, have them tried again, discard them
    #[command(subcommand)]
    DeadLetters(LettersCommand),
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Drawing {
    Svg,
    Mermaid,
}

#[derive(Args)]
pub struct ListArgs {
    /// A saga's name
    #[arg(long, value_name = "NAME")]
    definition: Option<String>,
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    paging: Paging,
    #[command(flatten)]
    format: Format,
}

#[derive(Subcommand)]
pub enum LettersCommand {
    /// List dead letters, newest first
    List {
        /// A saga's name
        #[arg(long, value_name = "NAME")]
        definition: Option<String>,
        /// open, retried or discarded
        #[arg(long, default_value = "open")]
        status: String,
        #[command(flatten)]
        paging: Paging,
        #[command(flatten)]
        format: Format,
    },
    /// Show a dead letter, with its event
    Show(One),
    /// Apply its event again
    Retry(One),
    /// Its event is not to be applied
    Discard(One),
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::Check { files, format } => check(&files, format),
        Command::Diagram { file, drawing } => {
            let definition = sagas::load(&file).map_err(not_loaded)?;
            match drawing {
                Drawing::Svg => print(&definition.svg(&Picture::default())),
                Drawing::Mermaid => print(&definition.mermaid()),
            }
            Ok(())
        }
        Command::List(args) => {
            let workspace = args.paging.workspace()?;
            args.paging.limit()?;
            with_sagas(config, async |sagas, _| list(sagas, &workspace, &args).await).await
        }
        Command::Show { saga, correlation_id, scope, format } => {
            let workspace = scope.workspace()?;
            with_sagas(config, async |sagas, _| {
                let found = sagas.find(&workspace, &saga, &correlation_id).await?.ok_or_else(|| {
                    Failure::not_found(format!("no {saga} of {correlation_id} in workspace {workspace}"))
                        .hint(format!("oncegate saga list --definition {saga} --workspace {workspace}"))
                })?;
                let history = sagas.history(&workspace, &found, HISTORY_MAX).await?;
                let lines = history_table(&history.0);
                let view = InstanceView::of(&found);
                match format.json {
                    true => show::record(&view.with_history(history), format),
                    false => {
                        show::record(&view, format);
                        print(&format!("\n{lines}"));
                    }
                }
                Ok(())
            })
            .await
        }
        Command::DeadLetters(command) => letters(command, config).await,
    }
}

async fn with_sagas(
    config: &Config,
    work: impl AsyncFnOnce(&Sagas, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    with_ledger(config, async |store, ledger, log| {
        work(&sagas::engine(config, store, ledger).map_err(not_loaded)?, log).await
    })
    .await
}

fn history_table(lines: &[LineSeen]) -> String {
    let rows = lines.iter().map(|LineSeen { line, duplicates }| {
        [
            Time::from_micros(line.at_us).to_string(),
            line.event.clone(),
            line.from.clone().unwrap_or_else(|| NONE.into()),
            line.to.clone(),
            line.commands_sent.to_string(),
            duplicates.to_string(),
            line.replica.clone(),
        ]
    });
    table(["AT", "EVENT", "FROM", "TO", "COMMANDS", "DUPLICATES", "REPLICA"], rows)
}

/// Checks all the files, even if one is wrong.
fn check(files: &[PathBuf], format: Format) -> Result<(), Failure> {
    let mut wrong = 0;
    let mut reports = vec![];
    for file in files {
        let name = file.display().to_string();
        match sagas::load(file) {
            Ok(definition) => {
                reports.push(
                    json!({ "file": name, "saga": definition.name(), "table": rows(&definition), "defects": [] }),
                );
                if !format.json {
                    print(&shown(&name, &definition));
                }
            }
            Err(NotLoaded::Defects(defects)) => {
                wrong += 1;
                if !format.json {
                    defects.0.iter().for_each(|defect| oncegate_process::output::say(format_args!("{defect}")));
                }
                reports.push(json!({ "file": name, "defects": defects.0 }));
            }
            Err(error) => {
                wrong += 1;
                if !format.json {
                    oncegate_process::output::say(&error);
                }
                reports.push(json!({ "file": name, "defects": [{ "file": name, "message": error.to_string() }] }));
            }
        }
    }
    if format.json {
        format.print(&reports, |_| String::new());
    }
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::new(format!("{wrong} of {} definitions cannot be used", files.len()))),
    }
}

/// What each event does in each state, in words.
fn rows(definition: &Definition) -> Vec<BTreeMap<String, String>> {
    let states = std::iter::once(None).chain(definition.states().iter().map(|state| Some(state.as_str())));
    let row = |state: Option<&str>| {
        let mut row = BTreeMap::from([("state".to_owned(), state.unwrap_or(NONE).to_owned())]);
        for event in definition.events() {
            row.insert(event.clone(), cell(definition, state, event));
        }
        row
    };
    states.map(row).collect()
}

fn cell(definition: &Definition, state: Option<&str>, event: &str) -> String {
    match definition.cell(state, event) {
        Some(Cell::Handled(_)) => {
            let stays = state.unwrap_or(NONE);
            let targets = definition.targets(state, event);
            let named = targets.iter().map(|to| if *to == stays { "stays".to_owned() } else { format!("→ {to}") });
            named.collect::<Vec<_>>().join(" or ")
        }
        Some(Cell::Ignored) => "ignored".into(),
        Some(Cell::Unexpected) => "unexpected".into(),
        None => String::new(),
    }
}

fn shown(file: &str, definition: &Definition) -> String {
    let states: Vec<Option<&str>> =
        std::iter::once(None).chain(definition.states().iter().map(|state| Some(state.as_str()))).collect();
    let head = |state: &Option<&str>| {
        let name = state.unwrap_or(NONE);
        if definition.is_terminal(name) { format!("{name} (terminal)") } else { name.to_owned() }
    };
    let header: Vec<String> = std::iter::once("EVENT".to_owned()).chain(states.iter().map(head)).collect();
    let body = definition.events().iter().map(|event| {
        let cells = states.iter().map(|state| cell(definition, *state, event));
        std::iter::once(event.clone()).chain(cells).collect::<Vec<_>>()
    });
    let commands: Vec<&str> = definition.commands().into_iter().collect();
    let sends = if commands.is_empty() { "nothing".to_owned() } else { commands.join(", ") };
    let kept = oncegate_core::units::show_duration(definition.retention());
    format!("{file}: {} is right; it sends {sends}; kept for {kept}\n{}", definition.name(), wide_table(header, body))
}

async fn list(sagas: &Sagas, workspace: &WorkspaceName, args: &ListArgs) -> Result<(), Failure> {
    let ListArgs { definition, state, paging, format } = args;
    let page = sagas.list(workspace, definition.as_deref(), state.as_deref(), paging.limit()?, paging.cursor).await?;
    let items = page.items.iter().map(InstanceView::of).collect();
    let rows = page.items.iter().map(|found| {
        [
            found.saga.clone(),
            found.correlation_id.clone(),
            found.instance.state.clone(),
            found.updated_at.to_string(),
            found.instance.completed_at().map_or(String::new(), |at| at.to_string()),
        ]
    });
    show::page(*format, items, page.next, ["SAGA", "CORRELATION ID", "STATE", "UPDATED", "COMPLETED"], rows);
    Ok(())
}

async fn letters(command: LettersCommand, config: &Config) -> Result<(), Failure> {
    match command {
        LettersCommand::List { definition, status, paging, format } => {
            let (workspace, limit) = (paging.workspace()?, paging.limit()?);
            let standing = one_of("--status", Some(status), LetterState::ALL, LetterState::as_str)?;
            with_sagas(config, async |sagas, _| {
                let document::Page { items: letters, next } =
                    sagas.dead_letters(&workspace, definition.as_deref(), standing, limit, paging.cursor).await?;
                let row = |letter: &DeadLetter| {
                    let event = letter.event.as_ref().map_or(String::new(), |event| event.event_type.clone());
                    let saga = letter.saga.clone().unwrap_or_default();
                    let about = letter.correlation_id.clone().unwrap_or_default();
                    [letter.id.to_string(), saga, about, plain(&event), plain(&letter.reason)]
                };
                let rows: Vec<_> = letters.iter().map(row).collect();
                let items = letters.into_iter().map(DeadLetterView::from).collect();
                let head = ["ID", "SAGA", "CORRELATION ID", "EVENT", "REASON"];
                show::page(format, items, next, head, rows.into_iter());
                Ok(())
            })
            .await
        }
        LettersCommand::Show(one) => {
            with_letter(one, config, async |sagas, _, wanted, format| {
                let letter = sagas.dead_letter(&wanted.workspace, wanted.id).await?.ok_or(NotRetried::Missing)?;
                show::record(&DeadLetterView::from(letter), format);
                Ok(())
            })
            .await
        }
        LettersCommand::Retry(one) => {
            let mut reason = None;
            with_letter(one, config, async |sagas, log, wanted, format| {
                let act = wanted.act("audit.dead_letter_retried", None);
                let (handled, _) = log.act(act, sagas.retry_dead_letter(&wanted.workspace, wanted.id)).await?;
                audit(wanted.id, "retried", None);
                if let Outcome::DeadLetter { reason: why, .. } = &handled.outcome {
                    reason = Some(why.clone());
                }
                show::record(&HandledView::from(handled), format);
                Ok(())
            })
            .await?;
            reason.map_or(Ok(()), |why| Err(Failure::new(format!("it is still a dead letter: {why}"))))
        }
        LettersCommand::Discard(one) => {
            with_letter(one, config, async |sagas, log, wanted, format| {
                let act = wanted.act("audit.dead_letter_discarded", None);
                let (letter, _) = log.act(act, sagas.discard_dead_letter(&wanted.workspace, wanted.id)).await?;
                audit(wanted.id, "discarded", None);
                show::record(&DeadLetterView::from(letter), format);
                Ok(())
            })
            .await
        }
    }
}

/// Does something to a dead letter.
async fn with_letter(
    one: One,
    config: &Config,
    verb: impl AsyncFnOnce(&Sagas, &Audit, &Wanted, Format) -> Result<(), NotRetried>,
) -> Result<(), Failure> {
    let wanted = one.read("dead letter", "saga dead-letters")?;
    with_sagas(config, async |sagas, log| {
        verb(sagas, log, &wanted, one.format).await.map_err(|refused| match refused {
            NotRetried::Missing => wanted.missing(),
            NotRetried::Settled(_) | NotRetried::NoEvent => wanted.refused(refused),
            NotRetried::Store(error) => error.into(),
        })
    })
    .await
}
