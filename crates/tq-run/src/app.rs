//! The program: a registry of stages behind a command line.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    slice,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use stage_replay::pace::NO_WEIGHTS;
use tq_config::Arguments;
use tq_model::ModelConfig;
use tq_schedule::{
    Plan, Planner, SourceFiles,
    plan::{Rows, StoreKind},
};
use tq_stage::{Parameters, Register};

use crate::{
    builtin, cli, data, exit,
    folder::{Existing, RunFolder},
    interrupt, keeper,
    phase::{self, Crew, Ended, PhaseRun},
    process,
    recorder::curve,
    registry::Registry,
    replay,
    settings::{self, Logger},
    worker,
};

/// A `tq-run` with the stages of one's choice.
///
/// ```no_run
/// # struct Mine;
/// // fn main() -> std::process::ExitCode { tq_run::App::new().stage::<Mine>().main() }
/// let program = tq_run::App::new();
/// ```
pub struct App {
    registry: Registry,
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}

/// Why the program ends without having finished.
enum Stop {
    Refused(anyhow::Error),
    Failed(anyhow::Error),
    Interrupted(String),
    /// Another process has told why.
    Told(u8),
}

impl App {
    /// With the built-in stages.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        builtin::add(&mut registry);
        Self { registry }
    }

    /// Adds a stage; pipelines name it by `S::NAME`.
    ///
    /// # Panics
    /// When a stage of that name is there already.
    #[must_use]
    pub fn stage<S: Register>(mut self) -> Self {
        self.registry.add::<S>();
        self
    }

    /// Parses the command line, runs, and says how it ended.
    pub fn main(self) -> ExitCode {
        let cli = cli::Cli::parse();
        process::prepare();
        match self.run(&cli) {
            Ok(()) => ExitCode::from(exit::FINISHED),
            Err(Stop::Refused(error)) => ended(&format!("refused: {error:#}"), exit::REFUSED),
            Err(Stop::Failed(error)) => ended(&format!("failed: {error:#}"), exit::FAILED),
            Err(Stop::Interrupted(what)) => ended(&what, exit::INTERRUPTED),
            Err(Stop::Told(code)) => ExitCode::from(code),
        }
    }

    /// Plans a pipeline as the command line would.
    ///
    /// # Errors
    /// Every refusal, with file, line and key.
    pub fn plan(&self, arguments: &[String]) -> Result<Plan> {
        let arguments = Arguments::parse(arguments)?;
        let pipeline = arguments
            .pipeline
            .as_deref()
            .context("no pipeline: name a file that ends in .yaml, such as pipelines/quickstart.yaml")?;
        let plan =
            Planner::new(&self.registry).rows(&count_rows).processes(true).plan_file(pipeline, &arguments.overrides)?;
        settings::check(&plan)?;
        Ok(plan)
    }

    fn run(&self, cli: &cli::Cli) -> Result<(), Stop> {
        match &cli.command {
            Some(cli::Command::Data { data }) => say(&data::write(data).map_err(Stop::Failed)?)?,
            Some(cli::Command::Stages) => {
                let schemas: BTreeMap<_, _> = self.registry.schemas().collect();
                say(&serde_json::to_string_pretty(&schemas).map_err(|e| Stop::Failed(e.into()))?)?;
            }
            Some(cli::Command::Store(asked)) => {
                let plan = self.plan(&asked.arguments).map_err(Stop::Refused)?;
                if asked.kept {
                    process::end_with_the_runner().map_err(Stop::Failed)?;
                }
                let crew = if asked.kept { Crew::Kept } else { Crew::Joining };
                self.train(&plan, Existing::of(asked.resume, asked.overwrite), asked.quiet, crew)?;
            }
            Some(cli::Command::Replay(asked)) => {
                let plan = replay::plan(&self.registry, &asked.folder, asked.phase.as_deref(), &asked.arguments);
                let plan = plan.map_err(Stop::Refused)?;
                if asked.dry_run {
                    say(&plan.describe())?;
                } else {
                    self.train(&plan, Existing::of(asked.resume, asked.overwrite), asked.quiet, Crew::Own)?;
                }
            }
            Some(cli::Command::Worker(worker)) => worker::run(&self.registry, worker).map_err(Stop::Failed)?,
            Some(cli::Command::Curve { runs, svg }) => say(&curve::draw(runs, svg.as_deref()).map_err(Stop::Failed)?)?,
            None => {
                let plan = self.plan(&cli.arguments).map_err(Stop::Refused)?;
                if cli.dry_run {
                    say(&plan.describe())?;
                } else if plan.store.kind == StoreKind::Process {
                    let root = run_root(&plan).map_err(Stop::Refused)?;
                    inputs(&plan).map_err(Stop::Refused)?;
                    keeper::keep(&root, cli, plan.store.transport)
                        .map_err(Stop::Failed)?
                        .map_or(Ok(()), |code| Err(Stop::Told(code)))?;
                } else {
                    self.train(&plan, Existing::of(cli.resume, cli.overwrite), cli.quiet, Crew::Own)?;
                }
            }
        }
        Ok(())
    }

    fn train(&self, plan: &Plan, existing: Existing, quiet: bool, crew: Crew) -> Result<(), Stop> {
        let resume = existing == Existing::Resume;
        let root = run_root(plan).map_err(Stop::Refused)?;
        inputs(plan).map_err(Stop::Refused)?;
        let folder = RunFolder::open(&root, plan, existing).map_err(Stop::Refused)?;
        let mut models: BTreeMap<String, PathBuf> =
            plan.models.iter().map(|(name, model)| (name.clone(), PathBuf::from(&model.path))).collect();
        for phase in &plan.phases {
            let phase_folder = folder.phase(plan, &phase.name).map_err(Stop::Failed)?;
            let finals: BTreeMap<String, PathBuf> =
                phase::weights(plan, phase).map(|m| (m.clone(), phase_folder.final_model(m))).collect();
            if resume && !finals.is_empty() && finals.keys().all(|model| phase_folder.is_final(model)) {
                phase_folder.forget_bytes(&plan.store).map_err(Stop::Failed)?;
                models.extend(finals);
                continue;
            }
            let last = phase_folder.clone();
            let run = PhaseRun {
                plan,
                phase,
                folder: phase_folder,
                registry: &self.registry,
                models: &models,
                resume,
                crew,
                progress: !quiet && settings::loggers(plan).map_err(Stop::Refused)?.contains(&Logger::Console),
            };
            match run.run().map_err(Stop::Failed)? {
                Ended::Finished { finals, owed } => {
                    owed.iter().try_for_each(|line| say(line))?;
                    models.extend(finals);
                }
                Ended::Interrupted(steps) => {
                    return Err(Stop::Interrupted(format!(
                        "stopped in phase `{}`; {} is saved, go on with --resume",
                        phase.name,
                        if steps == 0 {
                            "nothing".to_owned()
                        } else {
                            format!("step {steps} in {}", last.checkpoint(steps).display())
                        }
                    )));
                }
            }
        }
        if interrupt::requested() {
            return Err(Stop::Interrupted("stopped; the run had just finished".to_owned()));
        }
        if plan.phases.iter().all(|phase| phase::weights(plan, phase).next().is_none()) {
            // Nothing was trained: there is no curve.
            return Ok(());
        }
        let svg = root.join("curve.svg");
        match curve::draw(slice::from_ref(&root), Some(&svg)) {
            Ok(curve) => say(&curve),
            // The run itself is done and saved.
            Err(error) => {
                tracing::warn!("the curve cannot be drawn: {error:#}");
                Ok(())
            }
        }
    }
}

fn run_root(plan: &Plan) -> Result<PathBuf> {
    let folder = plan.parameters.pointer("/trainer/default_local_dir").and_then(serde_json::Value::as_str);
    Ok(PathBuf::from(folder.context("parameter trainer.default_local_dir is not set")?))
}

/// Checks that the files are there which the run is going to read, and that its models can be built, so that a wrong
/// path costs no phase before it.
fn inputs(plan: &Plan) -> Result<()> {
    for (name, model) in plan.models.iter().filter(|(_, model)| model.kind != NO_WEIGHTS) {
        let config = Path::new(&model.path).join("config.json");
        ensure!(
            config.is_file(),
            "models.{name}: found no `{}`; expected a model's folder (config.json, *.safetensors, tokenizer.json); `{} data digits` writes the one of the quick start",
            config.display(),
            process::name()
        );
        ModelConfig::from_folder(&model.path).with_context(|| format!("models.{name}: `{}`", config.display()))?;
    }
    let partitions = plan.phases.iter().flat_map(|phase| phase.partitions.iter().map(move |p| (phase, p)));
    for (phase, (name, partition)) in partitions {
        let Rows::Files { files, .. } = &partition.rows else { continue };
        if replay::is_replayed(phase, name) {
            continue;
        }
        if let Some(file) = files.iter().find(|file| !Path::new(file).is_file()) {
            bail!("partitions.{name}: found no file `{file}`; expected parquet in verl's layout");
        }
    }
    Ok(())
}

/// Prompts that the files of a partition come to, for plans whose length follows from epochs.
fn count_rows(source: &SourceFiles<'_>) -> Option<u64> {
    let parameters = Parameters::new(source.parameters.clone());
    let config = stage_dataset::Config::new(source.files.to_vec(), source.evaluated, &parameters).ok()?;
    config.count(&parameters).ok()
}

fn say(text: &str) -> Result<(), Stop> {
    match writeln!(io::stdout(), "{text}") {
        // Whoever reads the output has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output").map_err(Stop::Failed),
    }
}

#[allow(clippy::print_stderr, reason = "how the program ended is for people")]
fn ended(text: &str, code: u8) -> ExitCode {
    eprintln!("{}: {text}", process::name());
    ExitCode::from(code)
}
