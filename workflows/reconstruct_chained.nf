// Slices, a task a stage: for looking at what one stage does.

include { stage_params } from '../modules/local/params'
include { placed } from '../modules/local/output'

include { resample_mosaic_grid } from '../modules/resample_mosaic_grid'
include { detect_focal_curvature } from '../modules/detect_focal_curvature'
include { fix_illumination_3d } from '../modules/fix_illumination_3d'
include { aip_png } from '../modules/aip_png'
include { register_tiles } from '../modules/register_tiles'
include { stitch_3d_refined } from '../modules/stitch_3d_refined'
include { crop_3d_mosaic_below_interface } from '../modules/crop_3d_mosaic_below_interface'
include { normalize_intensities_per_slice } from '../modules/normalize_intensities_per_slice'

// A task a stage and slice, with the same result to the bit.
workflow reconstruct_chained {
    take:
    slices
    models
    schema

    main:
    grids = slices.map { slice_id, grid, _raw, digest -> [slice_id, grid, digest] }
    resample_mosaic_grid(grids, stage_params('resample_mosaic_grid', params, schema))
    detect_focal_curvature(
        resample_mosaic_grid.out.grid, models, stage_params('detect_focal_curvature', params, schema)
    )
    fix_illumination_3d(
        detect_focal_curvature.out.grid, models, stage_params('fix_illumination_3d', params, schema)
    )
    aip_png(fix_illumination_3d.out.grid)
    register_tiles(fix_illumination_3d.out.grid)
    stitch_3d_refined(
        fix_illumination_3d.out.grid.join(register_tiles.out.positions),
        stage_params('stitch_3d_refined', params, schema),
    )
    crop_3d_mosaic_below_interface(
        stitch_3d_refined.out.slice, stage_params('crop_3d_mosaic_below_interface', params, schema)
    )
    normalize_intensities_per_slice(
        crop_3d_mosaic_below_interface.out.slice,
        stage_params('normalize_intensities_per_slice', params, schema),
    )

    emit:
    slices = normalize_intensities_per_slice.out.slice
    files = normalize_intensities_per_slice.out.slice.map { _slice_id, path -> path }
        .mix(
            aip_png.out.aip,
            register_tiles.out.positions.map { _slice_id, path -> path },
            crop_3d_mosaic_below_interface.out.models,
            normalize_intensities_per_slice.out.models,
        )
        .map { path -> placed(path) }
    times = resample_mosaic_grid.out.time.mix(
        detect_focal_curvature.out.time,
        fix_illumination_3d.out.time,
        aip_png.out.time,
        register_tiles.out.time,
        stitch_3d_refined.out.time,
        crop_3d_mosaic_below_interface.out.time,
        normalize_intensities_per_slice.out.time,
    )
}
