// The gap of one missing slice, filled from its neighbours as far as neither shows it.
//
// The volume is optional: nothing is written where nothing is missing, or a gate fails.

include { gpu_flags } from './local/script'

process interpolate_missing_slice {
    tag "z${slice_id}"
    label 'slice'
    label 'gpu'

    input:
    tuple val(slice_id), path(before, stageAs: 'before/*'), path(after, stageAs: 'after/*')
    path shifts, stageAs: 'shifts_xy.csv'
    path registration
    stdin

    output:
    tuple val(slice_id), path("slices/slice_z${slice_id}_interpolated.ome.zarr"), emit: slice, optional: true
    path "diagnostics/slice_z${slice_id}_interpolated_diagnostics*.json", emit: diagnostics
    path "diagnostics/slice_z${slice_id}_interpolated.png", emit: preview, optional: true
    path "diagnostics/slice_z${slice_id}_manifest.csv", emit: manifest
    tuple val("${task.process}"), val("z${slice_id}"), env('SECONDS'), emit: time

    script:
    """
    linum_interpolate_missing_slice.py ${before} ${after} \\
        slices/slice_z${slice_id}_interpolated.ome.zarr \\
        --id ${slice_id} \\
        --registration ${registration} \\
        --shifts shifts_xy.csv \\
        --diagnostics diagnostics/slice_z${slice_id}_interpolated_diagnostics.json \\
        --preview diagnostics/slice_z${slice_id}_interpolated.png \\
        --manifest_entry diagnostics/slice_z${slice_id}_manifest.csv \\
        --params - \\
        ${gpu_flags(params.use_gpu, params.gpu_memory, task)}
    """

    stub:
    """
    mkdir -p slices/slice_z${slice_id}_interpolated.ome.zarr diagnostics
    touch diagnostics/slice_z${slice_id}_interpolated_diagnostics.json
    echo slice_id,method,method_used,fallback_reason,interpolation_failed,output_path \\
        > diagnostics/slice_z${slice_id}_manifest.csv
    """
}
