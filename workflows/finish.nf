// From the stacked brain to what people take with them: even brightness, the atlas' frame, NIfTI.

include { stage_params } from '../modules/local/schema'
include { checked_path } from '../modules/local/input'
include { placed } from '../modules/local/channels'

include { correct_bias_field } from '../modules/correct_bias_field'
include { align_to_ras } from '../modules/align_to_ras'
include { check_atlas } from '../modules/check_atlas'
include { download_allen } from '../modules/download_allen'
include { convert_omezarr_to_nifti } from '../modules/convert_omezarr_to_nifti'

workflow finish {
    take:
    subject
    brain
    stack_model
    preview
    schema

    main:
    files = channel.empty()
    times = channel.empty()

    if (params.correct_bias_field) {
        correct_bias_field(subject, brain, stack_model, stage_params('correct_bias_field', params, schema))
        brain = correct_bias_field.out.brain
        preview = correct_bias_field.out.preview
        files = files.mix(correct_bias_field.out.models)
        times = times.mix(correct_bias_field.out.time)
    }

    if (params.align_to_ras_enabled) {
        if (params.atlas) {
            // At once, beside the first slices: an atlas that cannot be read fails the start.
            check_atlas(checked_path('--atlas', params.atlas), stage_params('check_atlas', params, schema))
            atlas = check_atlas.out.atlas
            times = times.mix(check_atlas.out.time)
        }
        else {
            download_allen(stage_params('download_allen', params, schema))
            atlas = download_allen.out.atlas
            times = times.mix(download_allen.out.time)
        }
        align_to_ras(subject, brain, atlas, stage_params('align_to_ras', params, schema))
        files = files.mix(
            align_to_ras.out.brain, align_to_ras.out.transform, align_to_ras.out.models, align_to_ras.out.preview
        )
        times = times.mix(align_to_ras.out.time)
    }

    if (params.nifti_resolution) {
        convert_omezarr_to_nifti(subject, brain)
        times = times.mix(convert_omezarr_to_nifti.out.time)
    }

    emit:
    brain
    files = files.mix(brain, preview).flatten().map { path -> placed(path) }
    times
}
