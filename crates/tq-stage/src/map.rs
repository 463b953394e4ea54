//! The loop that turns a [`Map`] into a stage.

use std::time::Instant;

use anyhow::Result;
use fail::fail_point;

use crate::{Map, MapContext, StageContext};

/// Claims, maps and commits until every served task has ended.
///
/// An error of the map fails the rows (the store tries them again until `attempts` is used up); errors of the store end
/// the stage.
pub(crate) fn run<M: Map>(stage: &mut M, cx: &mut StageContext) -> Result<()> {
    while let Some(work) = cx.claim(cx.rows_per_claim())? {
        let begun = Instant::now();
        let batch = work.batch()?;
        let outcome = stage.map(&batch, &MapContext::new(cx, &work));
        drop(batch);
        match outcome {
            Ok(outputs) => {
                fail_point!("map::commit");
                work.commit(outputs)?;
            }
            Err(error) => {
                tracing::warn!(stage = cx.stage(), "batch failed: {error:#}");
                work.fail(&format!("{error:#}"))?;
            }
        }
        cx.report().timing(cx.stage(), begun.elapsed().as_secs_f64());
    }
    Ok(())
}
