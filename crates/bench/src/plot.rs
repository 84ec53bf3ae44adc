//! The report as charts: one SVG file per question, one line per system, sizes along the axis.

use crate::{BenchError, Report, Row, format_size};
use plotters::prelude::*;
use std::fs;
use std::path::Path;

const SIZE: (u32, u32) = (800, 480);

struct Chart {
    file: &'static str,
    title: &'static str,
    unit: &'static str,
    value: fn(&Row) -> f64,
    /// What no system can beat, drawn as a line of its own.
    reference: f64,
}

const CHARTS: [Chart; 3] = [
    Chart {
        file: "time.svg",
        title: "Time of a call over the limit of the links",
        unit: "time / limit",
        value: |row| if row.raw_limit_ms > 0.0 { row.time_ms.median / row.raw_limit_ms } else { 0.0 },
        reference: 1.0,
    },
    Chart {
        file: "wire.svg",
        title: "Bytes over all switch ports, over what multicast needs",
        unit: "wire bytes / minimum",
        value: |row| match row.multicast_minimum_bytes {
            0 => 0.0,
            minimum => row.wire_bytes / minimum as f64,
        },
        reference: 1.0,
    },
    Chart {
        file: "overlap.svg",
        title: "Communication hidden behind computing",
        unit: "overlap in %",
        value: |row| row.overlap.percent,
        reference: 100.0,
    },
];

/// Writes every chart into `directory`, which is made if need be.
pub(crate) fn draw(report: &Report, directory: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(directory).map_err(BenchError::system(format!("make {}", directory.display())))?;
    for chart in &CHARTS {
        let path = directory.join(chart.file);
        draw_chart(chart, report, &path)
            .map_err(|error| BenchError::Plot { path: path.clone(), reason: error.to_string() })?;
    }
    Ok(())
}

fn draw_chart(chart: &Chart, report: &Report, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = sizes(report);
    let systems = systems(report);
    let values = report.rows.iter().map(chart.value).chain([chart.reference]);
    let (low, high) = values.fold((0.0_f64, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    let last = sizes.len().saturating_sub(1) as f64;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut context = ChartBuilder::on(&root)
        .caption(chart.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.2..last + 0.2, low * 1.1..high * 1.1)?;
    let label = |at: &f64| match sizes.get(at.round() as usize) {
        Some(bytes) if (at - at.round()).abs() < 1e-6 => format_size(*bytes),
        _ => String::new(),
    };
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(sizes.len() * 10)
        .x_label_formatter(&label)
        .x_desc("bytes per rank")
        .y_desc(chart.unit)
        .draw()?;
    context.draw_series(LineSeries::new([(-0.2, chart.reference), (last + 0.2, chart.reference)], BLACK.mix(0.5)))?;
    for (index, system) in systems.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let points: Vec<(f64, f64)> = sizes
            .iter()
            .enumerate()
            .filter_map(|(at, bytes)| {
                let row = report.rows.iter().find(|row| row.bytes_per_rank == *bytes && row.system == *system)?;
                Some((at as f64, (chart.value)(row)))
            })
            .collect();
        context
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(4))?
            .label(system.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    context.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).draw()?;
    root.present()?;
    Ok(())
}

fn sizes(report: &Report) -> Vec<u64> {
    let mut sizes: Vec<u64> = report.rows.iter().map(|row| row.bytes_per_rank).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn systems(report: &Report) -> Vec<String> {
    let mut systems: Vec<String> = Vec::new();
    for row in &report.rows {
        if !systems.contains(&row.system) {
            systems.push(row.system.clone());
        }
    }
    systems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::row;

    #[test]
    fn charts_name_every_system_and_size() {
        let directory = tempfile::tempdir().unwrap();
        let rows = vec![
            row("outboard", 1 << 20, 26.0),
            row("outboard", 4 << 20, 105.0),
            row("mpich", 1 << 20, 27.0),
            row("mpich", 4 << 20, 111.0),
        ];
        draw(&Report { rows }, &directory.path().join("charts")).unwrap();
        for chart in &CHARTS {
            let text = fs::read_to_string(directory.path().join("charts").join(chart.file)).unwrap();
            for word in ["outboard", "mpich", "1M", "4M", chart.unit] {
                assert!(text.contains(word), "{word} in {}", chart.file);
            }
        }
    }
}
