include { stage_params } from '../modules/local/params'
include { in_order; placed } from '../modules/local/output'

include { register_slices } from '../modules/register_slices'
include { align_mosaics_3d_from_shifts } from '../modules/align_mosaics_3d_from_shifts'
include { stack_slices_motor } from '../modules/stack_slices_motor'
include { convert_omezarr_to_nifti } from '../modules/convert_omezarr_to_nifti'

// Slices to one brain.
workflow assemble {
    take:
    subject
    slices
    shifts
    config
    schema

    main:
    volumes = in_order(slices)
    register_slices(volumes, shifts, config, stage_params('register_slices', params, schema))
    times = register_slices.out.time
    if (!params.fused) {
        align_mosaics_3d_from_shifts(slices, volumes, register_slices.out.registration)
        volumes = in_order(align_mosaics_3d_from_shifts.out.slice)
        times = times.mix(align_mosaics_3d_from_shifts.out.time)
    }
    stack_slices_motor(
        subject,
        volumes,
        shifts,
        config,
        register_slices.out.registration,
        !params.fused,
        stage_params('stack_slices_motor', params, schema),
    )
    brain = stack_slices_motor.out.brain
    if (params.nifti_resolution) {
        convert_omezarr_to_nifti(subject, brain)
        times = times.mix(convert_omezarr_to_nifti.out.time)
    }

    emit:
    files = register_slices.out.registration
        .mix(brain, stack_slices_motor.out.models, stack_slices_motor.out.matches, stack_slices_motor.out.preview)
        .map { path -> placed(path) }
    times = times.mix(stack_slices_motor.out.time)
}
