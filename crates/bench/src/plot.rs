//! The report as charts: one SVG file per question, one line per system, sizes or grids along the axis.

use crate::BenchError;
use plotters::prelude::*;
use std::fs;
use std::path::Path;

const SIZE: (u32, u32) = (800, 480);

/// One chart: a line for each system.
pub(crate) struct Figure {
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// What no system can beat, drawn as a line of its own.
    pub(crate) reference: f64,
    pub(crate) x_title: &'static str,
    /// Places on the axis are evenly spaced, and labelled by this.
    pub(crate) x_label: fn(u64) -> String,
    pub(crate) points: Vec<Point>,
}

/// One system at one place on the axis.
pub(crate) struct Point {
    pub(crate) system: String,
    pub(crate) x: u64,
    pub(crate) value: f64,
}

/// Writes every chart into `directory`, which is made if need be.
pub(crate) fn draw(figures: &[Figure], directory: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(directory).map_err(BenchError::system(format!("make {}", directory.display())))?;
    for figure in figures {
        let path = directory.join(figure.file);
        draw_figure(figure, &path)
            .map_err(|error| BenchError::Plot { path: path.clone(), reason: error.to_string() })?;
    }
    Ok(())
}

fn draw_figure(figure: &Figure, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let places = places(figure);
    let values = figure.points.iter().map(|point| point.value).chain([figure.reference]);
    let (low, high) = values.fold((0.0_f64, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    let last = places.len().saturating_sub(1) as f64;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut context = ChartBuilder::on(&root)
        .caption(figure.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.2..last + 0.2, low * 1.1..high * 1.1)?;
    let label = |at: &f64| match places.get(at.round() as usize) {
        Some(x) if (at - at.round()).abs() < 1e-6 => (figure.x_label)(*x),
        _ => String::new(),
    };
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(places.len() * 10)
        .x_label_formatter(&label)
        .x_desc(figure.x_title)
        .y_desc(figure.unit)
        .draw()?;
    let reference = [(-0.2, figure.reference), (last + 0.2, figure.reference)];
    context.draw_series(LineSeries::new(reference, BLACK.mix(0.5)))?;
    for (index, system) in systems(figure).iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let at = |x: u64| {
            let point = figure.points.iter().find(|point| point.x == x && point.system == *system)?;
            Some(point.value)
        };
        let line = places.iter().enumerate().filter_map(|(place, x)| Some((place as f64, at(*x)?)));
        context
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(4))?
            .label(system.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    context.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).draw()?;
    root.present()?;
    Ok(())
}

fn places(figure: &Figure) -> Vec<u64> {
    let mut places: Vec<u64> = figure.points.iter().map(|point| point.x).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// In the order of the first points.
fn systems(figure: &Figure) -> Vec<String> {
    let mut systems: Vec<String> = Vec::new();
    for point in &figure.points {
        if !systems.contains(&point.system) {
            systems.push(point.system.clone());
        }
    }
    systems
}

#[cfg(test)]
mod tests {
    use crate::Report;
    use crate::report::tests::row;
    use std::fs;

    #[test]
    fn charts_name_every_system_and_size() {
        let directory = tempfile::tempdir().unwrap();
        let rows = vec![
            row("outboard", 1 << 20, 26.0),
            row("outboard", 4 << 20, 105.0),
            row("mpich", 1 << 20, 27.0),
            row("mpich", 4 << 20, 111.0),
        ];
        let figures = Report { rows }.figures();
        super::draw(&figures, &directory.path().join("charts")).unwrap();
        for figure in &figures {
            let text = fs::read_to_string(directory.path().join("charts").join(figure.file)).unwrap();
            for word in ["outboard", "mpich", "1M", "4M", figure.unit] {
                assert!(text.contains(word), "{word} in {}", figure.file);
            }
        }
    }
}
